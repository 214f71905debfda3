"""Studio: a web page on which pools, runs of teams and boards are watched, live or from records.

    runs      their settings, and threads that play teams and pools, or watch live servers
    server    who is admitted, REST and WebSocket; results folders and their reports
    views     charts, tables and bars; one run of each team
    pages     the pages themselves (NiceGUI)
    command   `inframind studio`

Everything that is watched is a run of a `RunStore`: numbered events, written as they happen. A page
or a client reads them from any number on, so that a reload or a lost socket misses nothing.
"""
