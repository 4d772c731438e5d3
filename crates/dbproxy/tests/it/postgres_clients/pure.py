import sys
import pg8000.native

for _ in range(2):
    c = pg8000.native.Connection("anybody", host=sys.argv[1], port=int(sys.argv[2]), password="wrong", database="postgres")
    statement = c.prepare("SELECT :a + 1")
    assert [statement.run(a=n)[0][0] for n in range(10)] == list(range(1, 11))
    statement.close()
    assert c.run("SELECT :a || 'x'", a="y") == [["yx"]]
    try:
        c.run("SELECT 1/0")
        raise SystemExit("no error")
    except pg8000.exceptions.DatabaseError:
        pass
    assert c.run("SELECT 1") == [[1]]
    c.close()
print("done")
