"""Server cards computed from a model's architecture and a GPU's data sheet, before any measurement.

architecture   models: `models.yaml`, or a folder's `config.json`
roofline       GPUs (`gpus.yaml`), and what a step and the memory of a server cost on them
packing        which model goes on which GPU: a pool, and its YAML
"""
