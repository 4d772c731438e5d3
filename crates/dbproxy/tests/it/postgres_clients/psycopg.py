import sys
import psycopg

where = f"host={sys.argv[1]} port={sys.argv[2]} user=anybody password=wrong dbname=postgres"
with psycopg.connect(where, application_name="Müller's") as c:
    assert c.execute("SELECT 1").fetchone() == (1,)
    c.execute("CREATE TEMP TABLE t (a int, b text)")
    with c.cursor().copy("COPY t FROM STDIN") as copy:
        for row in range(1000):
            copy.write_row((row, "x" * 100))
    assert c.execute("SELECT count(*) FROM t").fetchone() == (1000,)
    c.rollback()
    try:
        c.execute("SELECT 1/0")
        raise SystemExit("no error")
    except psycopg.errors.DivisionByZero:
        pass
    c.rollback()
    # From the fifth time on it prepares; then it frees with DEALLOCATE what it has no room for.
    c.prepared_max = 2
    for text in ["SELECT %s::int", "SELECT %s::int + 1", "SELECT %s::int + 2", "SELECT %s::int"]:
        for n in range(8):
            assert c.execute(text, [n]).fetchone()[0] >= n
            c.commit()
    with c.pipeline():
        cursors = [c.execute("SELECT %s::int", [n]) for n in range(50)]
        assert [cursor.fetchone()[0] for cursor in cursors] == list(range(50))
    c.commit()
    big = c.execute("SELECT repeat('x', 5000000)").fetchone()[0]
    assert len(big) == 5000000
    assert c.execute("SELECT length(%s)", [big]).fetchone() == (5000000,)
    with c.cursor(name="server_side") as cursor:
        cursor.execute("SELECT generate_series(1, 5000)")
        assert len(cursor.fetchall()) == 5000
    c.execute("SET TIME ZONE 'Asia/Tokyo'")
    c.commit()
    for _ in range(3):
        assert c.execute("SHOW timezone").fetchone() == ("Asia/Tokyo",)
        c.commit()
with psycopg.connect(where, autocommit=True) as c:
    assert c.execute("SHOW timezone").fetchone() != ("Asia/Tokyo",)
    c.execute("LISTEN news")
    c.execute("NOTIFY news, 'hello'")
    assert next(c.notifies(timeout=10)).payload == "hello"
print("done")
