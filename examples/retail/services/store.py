"""The shop's tables: JSON values by key, in PostgreSQL.

Each access opens a connection, lists the tables, runs its statement and closes, like the original. A put is a transaction of
DELETE and INSERT. The functions have no pool, because the platform pools their connections. $HOST (HOST:PORT), $USER, $PASS and
$DBNAME name the database.
"""

import contextlib
import json
import os

import pg8000.native

from web import Problem

PHOTOGRAPHERS, ASSIGNMENTS, PHOTOS = "photographers", "photo_assignments", "stored_photos"
CATEGORIES, PRODUCTS, PRICES, CARDS = "product_category", "product_catalog", "product_price", "credit_cards"

TIMEOUT = 10.0  # seconds to connect, and for each response


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
            ssl_context=False,  # the default loads all root certificates for each connection
            application_name=os.environ.get("OPENFAAS_NAME", "retail"),
        )
    except pg8000.native.InterfaceError as error:  # pg8000's wrapper of an OSError
        raise Problem(503, f"the database at {host}:{port} cannot be reached: {error.__cause__ or error}") from error


@contextlib.contextmanager
def access(table, key=""):
    """Yields a connection for one access to a table."""
    if not isinstance(key, str):
        raise Problem(400, f"{key!r} is no key: expected text")
    connection = connect()
    try:
        tables = connection.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        if [table] not in tables:
            raise Problem(500, f"the database has no table {table}: load seed.sql")
        yield connection
    finally:
        connection.close()


def get(table, key):
    """Returns the value of a key, or None."""
    with access(table, key) as connection:
        rows = connection.run(f"SELECT value FROM {table} WHERE key = :key", key=key)
    return rows[0][0] if rows else None


def scan(table, limit=None, **fields):
    """Returns up to `limit` values with the given fields, in the order of their keys."""
    statement = f"SELECT value FROM {table} WHERE value @> CAST(:fields AS jsonb) ORDER BY key LIMIT :limit"
    with access(table) as connection:
        return [value for (value,) in connection.run(statement, fields=json.dumps(fields), limit=limit)]


def put(table, key, value):
    """Sets the value of a key."""
    with access(table, key) as connection:
        connection.run("START TRANSACTION")
        connection.run(f"DELETE FROM {table} WHERE key = :key", key=key)
        insert(connection, table, key, value)
        connection.run("COMMIT")


def replace(table, key, old, new):
    """Replaces the value `old` of a key. Returns False after a concurrent change."""
    with access(table, key) as connection:
        connection.run("START TRANSACTION")
        statement = f"DELETE FROM {table} WHERE key = :key AND value = CAST(:old AS jsonb) RETURNING key"
        deleted = connection.run(statement, key=key, old=json.dumps(old))
        if deleted:
            insert(connection, table, key, new)
        connection.run("COMMIT")
    return bool(deleted)


def insert(connection, table, key, value):
    """Inserts a value. Concurrent puts of a new key delete nothing, so the later one updates the key."""
    statement = f"INSERT INTO {table} VALUES (:key, CAST(:value AS jsonb)) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    connection.run(statement, key=key, value=json.dumps(value))


def delete(table, key):
    with access(table, key) as connection:
        connection.run(f"DELETE FROM {table} WHERE key = :key", key=key)
