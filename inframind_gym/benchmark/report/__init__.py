"""A report of results folders: one HTML file that needs neither network nor server.

    data        boards, comparisons and shares of runs as JSON
    replay      episodes that are played again with everything that happened in them
    timelines   their timelines, family by family
    page        the file: style, scripts and data in one

`data` documents the JSON; drawing knows nothing else: `charts.js` draws parts, `page.js` puts them
together.
"""
