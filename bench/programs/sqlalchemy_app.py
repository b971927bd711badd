"""SQLAlchemy's object-relational mapping on SQLite in memory: inserts, joins, changes, aggregates."""

import sys

from sqlalchemy import ForeignKey, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    books: Mapped[list["Book"]] = relationship(back_populates="author")


class Book(Base):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    pages: Mapped[int]
    author_id: Mapped[int] = mapped_column(ForeignKey("author.id"))
    author: Mapped[Author] = relationship(back_populates="books")


def main(rounds):
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    for number in range(rounds):
        with Session(engine) as session:
            for at in range(100):
                books = [Book(title=f"book {number} {at} {which}", pages=at * which) for which in range(5)]
                session.add(Author(name=f"author {number} {at}", books=books))
            session.commit()
        with Session(engine) as session:
            found = select(Author).options(selectinload(Author.books)).order_by(Author.id.desc()).limit(200)
            for author in session.scalars(found):
                author.name = author.name.upper()
                sum(book.pages for book in author.books)
            session.commit()
            counted = select(Author.name, func.sum(Book.pages)).join(Book).group_by(Author.id).having(func.count() > 2)
            session.execute(counted).all()


main(int(sys.argv[1]))
