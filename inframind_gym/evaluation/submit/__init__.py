"""Submissions: results of one policy on one suite that anybody can check.

    submission   manifest, check, preparation from a run, and replay of a sample
    board        the public board from all submissions
    commands     the command line

A submission is a folder ``<suite>/<name>/`` that is laid out as the working directory of its run:
checkpoints, files of fits and modules lie where the policy's name expects them. Nothing here
imports or installs what comes with a submission: policies of this package alone are played.
"""
