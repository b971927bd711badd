"""Makes, calls and drops 200 functions, one after the other; CPython puts nearly all of their code at one address."""


def once(number):
    source = (
        "def made_%d():\n" % number + "    pass\n" * (number % 5) + "    return bytearray(%d)\n" % (99_999 + number)
    )
    names = {}
    exec(compile(source, "<made %d>" % number, "exec"), names)
    names["made_%d" % number]()


for each in range(200):
    once(each)
