"""A Django application, in one file, that answers 100 requests; half of them keep something."""

import django
from django.conf import settings
from django.http import JsonResponse
from django.template import engines
from django.test import Client
from django.urls import path

TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="-", TEMPLATES=TEMPLATES, LOGGING_CONFIG=None)
django.setup()
cache = []


def keep():
    return bytearray(70_000)


def work(request, number):
    bytearray(100_002)
    return JsonResponse({"number": number, "values": list(range(number))})


def remember(request, number):
    cache.append(keep())
    text = engines["django"].from_string("{{ number }} of {{ total }}").render({"number": number, "total": len(cache)})
    return JsonResponse({"text": text})


urlpatterns = [path("work/<int:number>", work), path("remember/<int:number>", remember)]
client = Client()
total = 0
for number in range(50):
    total += len(client.get(f"/work/{number}").json()["values"])
    total += len(client.get(f"/remember/{number}").content)
print(total)
