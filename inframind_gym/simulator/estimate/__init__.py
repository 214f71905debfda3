"""Server cards computed from a model's architecture and a GPU's data sheet, before any measurement.

roofline   models and GPUs (`models.yaml`, `gpus.yaml`), and what a step and its memory cost
packing    which model goes on which GPU: a pool, and its YAML
"""
