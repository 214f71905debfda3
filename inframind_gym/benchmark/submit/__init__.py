"""Submissions: results of one policy on one suite that anybody can check.

    manifest   submission.json: who, what plays, and the checksum of every file
    prepare    a submission from a results folder
    check      everything but the numbers: files, versions, seeds, cells, what plays
    unseen     training on test questions, where a checkpoint tells of it
    verify     cells that are played again and must be met bit for bit
    apart      code of a submission's own, in a process that knows no environment
    board      the public board from all submissions

A submission is a folder ``<suite>/<name>/`` that is laid out as the working directory of its run:
checkpoints, files of fits and modules lie where the policy's name expects them.
"""
