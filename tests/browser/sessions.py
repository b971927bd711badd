"""Objects of two types: sessions, and texts that they hold."""


class Session:
    def __init__(self, number):
        self.name = f"session {number}"


SESSIONS = [Session(number) for number in range(20_000)]
