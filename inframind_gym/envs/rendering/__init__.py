"""The "rgb_array" render mode: a picture of servers, budget and the last decisions.

    env = gym.make("InfraMind-Stream-v0", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    image = env.render()  # (540, 960, 3) uint8

`view` reads the simulation, without changing it, into a plain `View`; `frame` paints a view.
"""
