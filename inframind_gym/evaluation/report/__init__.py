"""A report of results folders: one HTML file that needs neither network nor server.

    data        boards, comparisons and shares of runs as JSON
    page        the file: style, scripts and data in one, with episodes that are played again
    timelines   their timelines, family by family

`data` documents the JSON; drawing knows nothing else: `charts.js` draws parts, `page.js` puts them
together.
"""
