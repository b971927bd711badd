"""A server whose statistics grow with each request, a little: docs/tutorial.md finds it."""

import sys
from collections import defaultdict

TIMINGS = defaultdict(list)


def render(user):
    return ("<p>%s</p>" % user) * 400


def note(path, body):
    TIMINGS[path].append(body[:1000])


def serve(number):
    body = render("user %d" % (number % 50))
    note("/start", body)
    return len(body)


def main(requests):
    print(sum(serve(number) for number in range(requests)))


main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
