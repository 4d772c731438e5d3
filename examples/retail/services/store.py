"""The shop's tables: JSON values by key, in PostgreSQL.

Every access opens a connection, lists the tables, runs its statement and closes, as the original does; a put is a
transaction of DELETE and INSERT. There is no pool here: sparing functions like these their connections is the platform's job.
$HOST (HOST:PORT), $USER, $PASS and $DBNAME say where the database is.
"""

import contextlib
import json
import os

import pg8000.native

from web import Problem

PHOTOGRAPHERS, ASSIGNMENTS, PHOTOS = "photographers", "photo_assignments", "stored_photos"
CATEGORIES, PRODUCTS, PRICES, CARDS = "product_category", "product_catalog", "product_price", "credit_cards"

TIMEOUT = 10.0  # seconds: to connect, and for every answer


def connect():
    host, _, port = os.environ["HOST"].rpartition(":")
    try:
        return pg8000.native.Connection(
            os.environ["USER"],
            host=host,
            port=int(port),
            database=os.environ["DBNAME"],
            password=os.environ["PASS"],
            timeout=TIMEOUT,
            ssl_context=False,  # the default reads all of the machine's root certificates, for every connection
            application_name=os.environ.get("OPENFAAS_NAME", "retail"),
        )
    except pg8000.native.InterfaceError as error:  # what pg8000 makes of an OSError
        raise Problem(503, f"the database at {host}:{port} cannot be reached: {error.__cause__ or error}") from error


@contextlib.contextmanager
def access(table, key=""):
    """A connection for one access to this table."""
    if not isinstance(key, str):
        raise Problem(400, f"{key!r} is no key: it must be text")
    connection = connect()
    try:
        tables = connection.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        if [table] not in tables:
            raise Problem(500, f"the database has no table {table}: load seed.sql")
        yield connection
    finally:
        connection.close()


def get(table, key):
    """The value of this key, or None."""
    with access(table, key) as connection:
        rows = connection.run(f"SELECT value FROM {table} WHERE key = :key", key=key)
    return rows[0][0] if rows else None


def scan(table, limit=None, **fields):
    """Values in the order of their keys: those that have these fields, at most `limit` of them."""
    statement = f"SELECT value FROM {table} WHERE value @> CAST(:fields AS jsonb) ORDER BY key LIMIT :limit"
    with access(table) as connection:
        return [value for (value,) in connection.run(statement, fields=json.dumps(fields), limit=limit)]


def put(table, key, value):
    """Sets the value of a key, whatever it was."""
    with access(table, key) as connection:
        connection.run("START TRANSACTION")
        connection.run(f"DELETE FROM {table} WHERE key = :key", key=key)
        insert(connection, table, key, value)
        connection.run("COMMIT")


def replace(table, key, old, new):
    """Sets the value of a key that has the value `old`. False when another was quicker and it has not."""
    with access(table, key) as connection:
        connection.run("START TRANSACTION")
        statement = f"DELETE FROM {table} WHERE key = :key AND value = CAST(:old AS jsonb) RETURNING key"
        there = connection.run(statement, key=key, old=json.dumps(old))
        if there:
            insert(connection, table, key, new)
        connection.run("COMMIT")
    return bool(there)


def insert(connection, table, key, value):
    """The second half of a put. Two puts of a new key at a time delete nothing, so the later one finds the key taken."""
    statement = f"INSERT INTO {table} VALUES (:key, CAST(:value AS jsonb)) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    connection.run(statement, key=key, value=json.dumps(value))


def delete(table, key):
    with access(table, key) as connection:
        connection.run(f"DELETE FROM {table} WHERE key = :key", key=key)
