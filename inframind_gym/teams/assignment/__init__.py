"""Assignment: which agent takes a task, and on which provider, when agents get overloaded.

settings, rules, simulate      constants, load and rewards, tasks and answers that are drawn
training, graph, system        a run: its parts, the five nodes of the training, production
coordinator, tracker, states   who decides; the window of assignments; state machines in the log
model, judge, answers, draws   data; scores; drawn answers and numbers of the application
command, report, plots, names  terminal and pictures
"""
