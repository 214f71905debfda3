"""Studio: a page on which pools, runs of teams and boards are watched, live or from their records.

    orders     what the page may start, checked
    launch     runs under way: each a thread that writes its events to the file of runs
    teams      plays an order of a team
    pool       plays a simulation; watches live servers and a gateway
    boards     results folders and their reports
    security   who is admitted, and headers of answers
    app        REST and WebSocket over the file of runs
    export     the same page without a server
    frontend   source of the page; `make studio` builds it into `static`

Everything that is watched is a run of a `RunStore`: events with numbers, written as they happen. A
client reads them from any number on, so a page that was reloaded or has lost its socket misses
nothing.
"""
