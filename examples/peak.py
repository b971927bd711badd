"""A file that is held three times at once: docs/tutorial.md finds it."""


def read():
    return bytearray(b"some text, again and again\n") * 400_000


def clean(text):
    return text.replace(b"again", b"once")


def count(text):
    return len(text.splitlines(keepends=False))


def main():
    text = read()
    cleaned = clean(text)
    print(count(bytes(cleaned)))


main()
