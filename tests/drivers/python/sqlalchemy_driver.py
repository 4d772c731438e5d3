"""SQLAlchemy on psycopg: its pool with pre-ping, the ORM, isolation levels, reflection."""
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from target import DATABASE, HOST, PASSWORD, PORT, USER


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "sa_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    lines: Mapped[list["Line"]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "sa_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("sa_orders.id"))
    item: Mapped[str]
    order: Mapped[Order] = relationship(back_populates="lines")


url = sa.URL.create("postgresql+psycopg", USER, PASSWORD, HOST, PORT, DATABASE)
engine = sa.create_engine(url, pool_size=3, pool_pre_ping=True)
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all(Order(customer=f"c{number}", lines=[Line(item="mug"), Line(item="cup")]) for number in range(20))
    session.commit()
    print(session.scalar(sa.select(sa.func.count()).select_from(Line)))
    print([order.customer for order in session.scalars(sa.select(Order).join(Line).where(Line.item == "cup").order_by(Order.id).limit(3))])
    nested = session.begin_nested()
    session.add(Order(customer="never"))
    session.flush()
    nested.rollback()
    print(session.scalar(sa.select(sa.func.count()).select_from(Order)))
with engine.connect().execution_options(isolation_level="SERIALIZABLE") as client:
    print(client.scalar(sa.text("SHOW transaction_isolation")))
with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as client:
    print(client.scalar(sa.text("SELECT 1")))
print(sorted(column["name"] for column in sa.inspect(engine).get_columns("sa_lines")))
with engine.connect().execution_options(stream_results=True) as client:
    print(sum(row[0] for row in client.execute(sa.text("SELECT generate_series(1, 10000)"))))
Base.metadata.drop_all(engine)
engine.dispose()
