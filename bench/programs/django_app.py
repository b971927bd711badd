"""Django without a server: models in SQLite, queries, templates and requests of the test client."""

import sys

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    ROOT_URLCONF=__name__,
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
django.setup()

from django.contrib.auth.models import Group, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db.models import Count  # noqa: E402
from django.http import HttpResponse, JsonResponse  # noqa: E402
from django.template import engines  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

PAGE = """<h1>{{ title|upper }}</h1>{% for user in users %}<li class="{% cycle 'odd' 'even' %}">
{{ forloop.counter }} {{ user.username|title }} {{ user.email|default:"none" }}{% if user.is_staff %} staff{% endif %}
{% for group in user.groups.all %}<b>{{ group.name|escape }}</b>{% endfor %}</li>{% endfor %}"""


def page(request):
    users = User.objects.prefetch_related("groups").order_by("username")[:40]
    return HttpResponse(engines["django"].from_string(PAGE).render({"title": "people", "users": users}))


def counts(request):
    return JsonResponse({group.name: group.people for group in Group.objects.annotate(people=Count("user"))})


urlpatterns = [path("page/", page), path("counts/", counts)]


def main(requests):
    call_command("migrate", verbosity=0)
    groups = [Group.objects.create(name=f"group {number}") for number in range(10)]
    for number in range(100):
        user = User.objects.create_user(f"user{number}", f"user{number}@example.org", "password", is_staff=number % 7 == 0)
        user.groups.set(groups[number % 5 : number % 5 + 3])
    client = Client()
    for _ in range(requests):
        assert client.get("/page/").status_code == client.get("/counts/").status_code == 200


main(int(sys.argv[1]))
