CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total REAL, note TEXT);
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 60000)
INSERT INTO orders SELECT n, n * 7919 % 997, n * 31 % 1000 / 10.0, 'note ' || hex(n * n) FROM number;
CREATE INDEX by_customer ON orders(customer, total);
SELECT customer, count(*), group_concat(note, ',') FROM orders GROUP BY customer ORDER BY sum(total) DESC LIMIT 50;
SELECT a.id, b.id FROM orders a JOIN orders b ON a.customer = b.customer AND a.total < b.total WHERE a.id % 100 = 0 LIMIT 20000;
SELECT upper(note), length(note), substr(note, 3) FROM orders WHERE note LIKE '%AB%';
UPDATE orders SET note = replace(note, 'note', 'changed') WHERE id % 3 = 0;
SELECT json_group_array(json_object('id', id, 'note', note)) FROM orders WHERE id % 7 = 0;
DELETE FROM orders WHERE customer % 2 = 0;
SELECT note, row_number() OVER (PARTITION BY customer ORDER BY total) FROM orders ORDER BY total DESC LIMIT 10000;
