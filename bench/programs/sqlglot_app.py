"""Parses, rewrites and prints SQL in several dialects with sqlglot."""

import sys

import sqlglot
from sqlglot import optimizer

QUERY = """
WITH recent AS (SELECT id, customer, total, placed FROM orders WHERE placed > '2026-01-01' AND total BETWEEN 10 AND 1000),
ranked AS (SELECT customer, total, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY total DESC) AS place FROM recent)
SELECT c.name, c.city, SUM(r.total) AS spent, COUNT(*) AS orders,
  CASE WHEN SUM(r.total) > 500 THEN 'gold' WHEN SUM(r.total) > 100 THEN 'silver' ELSE 'none' END AS level
FROM customers AS c JOIN ranked AS r ON r.customer = c.id LEFT JOIN regions AS g ON g.city = c.city
WHERE r.place <= 5 AND (c.name LIKE 'A%' OR c.city IN ('Bonn', 'Ulm', 'Jena')) AND COALESCE(g.open, TRUE)
GROUP BY c.name, c.city HAVING COUNT(*) > 1 ORDER BY spent DESC LIMIT 20
"""
SCHEMA = {
    "orders": {"id": "int", "customer": "int", "total": "double", "placed": "date"},
    "customers": {"id": "int", "name": "varchar", "city": "varchar"},
    "regions": {"city": "varchar", "open": "boolean"},
}


def main(rounds):
    for number in range(rounds):
        tree = sqlglot.parse_one(QUERY.replace("500", str(500 + number)))
        for dialect in ("postgres", "bigquery", "tsql"):
            tree.sql(dialect)
        optimizer.optimize(tree, schema=SCHEMA)


main(int(sys.argv[1]))
