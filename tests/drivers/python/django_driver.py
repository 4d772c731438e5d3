"""Django on psycopg: migrations of its own models, atomic blocks, server-side cursors, time zones."""
import datetime

import django
from django.conf import settings

from target import DATABASE, HOST, PASSWORD, PORT, USER

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={"default": dict(ENGINE="django.db.backends.postgresql", HOST=HOST, PORT=PORT, USER=USER, PASSWORD=PASSWORD, NAME=DATABASE, CONN_HEALTH_CHECKS=True)},
    USE_TZ=True,
    SECRET_KEY="only for tests",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
from django.contrib.auth.models import Group, User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

call_command("migrate", verbosity=0)
User.objects.all().delete()
Group.objects.all().delete()
joined = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
with transaction.atomic():
    group = Group.objects.create(name="buyers")
    for number in range(20):
        User.objects.create(username=f"u{number}", date_joined=joined).groups.add(group)
    try:
        with transaction.atomic():
            User.objects.create(username="u0")
    except IntegrityError as error:
        print(error.__cause__.sqlstate)
print(User.objects.filter(groups__name="buyers").count(), User.objects.order_by("id").first().date_joined)
print(sum(1 for _ in User.objects.iterator(chunk_size=5)))
print([user.username for user in User.objects.select_for_update().order_by("id")[:2]] if not connection.in_atomic_block and transaction.set_autocommit(False) is None else [])
transaction.rollback()
transaction.set_autocommit(True)
session = SessionStore()
session["cart"] = [1, 2, 3]
session.save()
print(SessionStore(session.session_key)["cart"])
with connection.cursor() as cursor:
    cursor.execute("SELECT current_setting('TimeZone'), %s::int", [7])
    print(cursor.fetchone())
connection.close()
