"""The drivers: how their programs are built, and the command that runs each."""

import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent


@dataclass(frozen=True)
class Driver:
    name: str
    database: str
    language: str
    command: str


DRIVERS = [
    *[Driver(name, "postgres", "python", f"python3 {name}_driver.py") for name in ("asyncpg", "psycopg", "sqlalchemy", "django")],
    Driver("pgx", "postgres", "go", "./pgx"),
    Driver("node-postgres", "postgres", "node", "node pg.js"),
    Driver("postgres-js", "postgres", "node", "node postgres.js"),
    Driver("hikari", "postgres", "java", "java -XX:TieredStopAtLevel=1 -cp classes:lib/* Hikari"),
    Driver("pymysql", "mysql", "python", "python3 pymysql_driver.py"),
    Driver("mysqlclient", "mysql", "python", "python3 mysqlclient_driver.py"),
    Driver("go-sql-driver", "mysql", "go", "./mysql"),
    Driver("mysql2", "mysql", "node", "node mysql2.js"),
    Driver("redis-py", "redis", "python", "python3 redis_driver.py"),
    Driver("go-redis", "redis", "go", "./redis"),
    Driver("ioredis", "redis", "node", "node ioredis.js"),
    Driver("lettuce", "redis", "java", "java -XX:TieredStopAtLevel=1 -cp classes:lib/* Lettuce"),
]


def build_python(folder):
    shutil.copytree(HERE / "python", folder, dirs_exist_ok=True)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-warn-conflicts", "--target", folder / "packages", "-r", HERE / "python/requirements.txt"]
    subprocess.run(install, check=True)


def build_go(folder):
    subprocess.run(["go", "build", "-o", f"{folder}/", "./..."], check=True, cwd=HERE / "go", env=os.environ | {"CGO_ENABLED": "0"})


def build_node(folder):
    shutil.copytree(HERE / "node", folder, dirs_exist_ok=True)
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], check=True, cwd=folder)


def build_java(folder):
    copy = ["mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies", f"-DoutputDirectory={folder}/lib"]
    subprocess.run(copy, check=True, cwd=HERE / "java", stdout=subprocess.DEVNULL)
    subprocess.run(["javac", "-d", folder / "classes", "-cp", f"{folder}/lib/*", *sorted((HERE / "java").glob("*.java"))], check=True)


BUILDS = {"python": build_python, "go": build_go, "node": build_node, "java": build_java}


def build(language, target):
    """Builds the programs of a language below `target` and returns their folder. A build is kept until its sources change."""
    folder = target / language
    sources = sorted(path for path in (HERE / language).rglob("*") if path.is_file() and "node_modules" not in path.parts)
    state = "\n".join(f"{path.relative_to(HERE)} {path.stat().st_mtime_ns}" for path in sources)
    mark = target / f"{language}.built"
    if not mark.exists() or mark.read_text() != state:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        BUILDS[language](folder)
        mark.write_text(state)
    return folder
