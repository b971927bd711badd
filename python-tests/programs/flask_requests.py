"""A Flask application that answers 100 requests of its own test client."""

import flask

application = flask.Flask(__name__)
cache = []


def keep():
    return bytearray(70_000)


@application.get("/work/<int:number>")
def work(number):
    bytearray(100_002)
    return {"number": number, "values": list(range(number))}


@application.get("/remember/<int:number>")
def remember(number):
    cache.append(keep())
    return flask.render_template_string("<p>{{ number }} of {{ total }}</p>", number=number, total=len(cache))


client = application.test_client()
total = 0
for number in range(50):
    total += len(client.get(f"/work/{number}").get_json()["values"])
    total += len(client.get(f"/remember/{number}").data)
print(total, client.get("/nowhere").status_code)
