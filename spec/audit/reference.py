#!/usr/bin/env python3
"""What Python's libraries make of a list of questions: JSON from the standard input, a list of answers to the standard output.

usage: reference.py templates <QUESTIONS >ANSWERS
templates: questions are {template, variables (text of JSON)}, answers {text} or {error}.
"""
import json
import sys


def templates(questions):
    """By jinja2, in the environment of transformers."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    answers = []
    for q in questions:
        try:
            answers.append({"text": env.from_string(q["template"]).render(**json.loads(q["variables"]))})
        except Exception as e:  # of jinja2, or of Python inside of the template
            answers.append({"error": "%s: %s" % (type(e).__name__, e)})
    return answers


if __name__ == "__main__":
    json.dump({"templates": templates}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
