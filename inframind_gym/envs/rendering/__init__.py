"""What a person sees of an environment: servers, budget and the last decisions.

    env = gym.make("InfraMind-Stream-v0", render_mode="ansi")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    print(env.render())

`view.look` reads the simulation, without changing it, into a plain `View`; `table.draw_table`
writes a view as text ("ansi") and `frame.draw_frame` paints it ("rgb_array").
"""
