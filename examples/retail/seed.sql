-- The shop's tables with what is in them before the first customer. Loading it again starts anew.
DROP TABLE IF EXISTS photographers, photo_assignments, stored_photos, product_category, product_catalog, product_price, credit_cards;

CREATE TABLE photographers (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE photo_assignments (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE stored_photos (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE product_category (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE product_catalog (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE product_price (key text PRIMARY KEY, value jsonb NOT NULL);
CREATE TABLE credit_cards (key text PRIMARY KEY, value jsonb NOT NULL);

CREATE TEMPORARY TABLE goods (id text, category text, brand text, name text, cents int, description text);
INSERT INTO goods VALUES
  ('boot-1', 'boots', 'Northtrail', 'Hiking boot', 14900, 'Ankle-high, waterproof, with a sole that can be replaced.'),
  ('boot-2', 'boots', 'Northtrail', 'Winter boot', 17900, 'Lined with wool. Keeps feet warm to twenty degrees of frost.'),
  ('boot-3', 'boots', 'Marsh & Sons', 'Rubber boot', 4900, 'Knee-high natural rubber for gardens, fields and puddles.'),
  ('coat-1', 'coats', 'Harbour', 'Raincoat', 12900, 'Oiled cotton with a hood. Grows lighter where it is worn.'),
  ('coat-2', 'coats', 'Harbour', 'Pea coat', 18900, 'Heavy wool, two rows of buttons, pockets for cold hands.'),
  ('coat-3', 'coats', 'Fieldwork', 'Down jacket', 21900, 'Fits into its own pocket. Weighs less than a loaf of bread.'),
  ('hat-1', 'hats', 'Fieldwork', 'Sun hat', 2900, 'A wide brim and a cord under the chin for windy days.'),
  ('hat-2', 'hats', 'Harbour', 'Watch cap', 1900, 'Ribbed wool in navy blue. Warm even when it is wet.'),
  ('hat-3', 'hats', 'Marsh & Sons', 'Flat cap', 3900, 'Tweed, lined, made of eight pieces.'),
  ('bag-1', 'bags', 'Northtrail', 'Day pack', 8900, 'Twenty litres, two bottles, one zip that does not stick.'),
  ('bag-2', 'bags', 'Marsh & Sons', 'Satchel', 15900, 'Saddle leather and brass. Holds a laptop of fourteen inches.'),
  ('bag-3', 'bags', 'Fieldwork', 'Dry bag', 2400, 'Rolls shut, floats, and keeps thirty litres dry.');

INSERT INTO product_category SELECT DISTINCT category, jsonb_build_object('category', category) FROM goods;
INSERT INTO product_price SELECT id, jsonb_build_object('id', id, 'cents', cents) FROM goods;
INSERT INTO product_catalog SELECT id, jsonb_build_object(
  'id', id, 'category', category, 'brand', brand, 'name', name, 'description', description, 'image', '') FROM goods;
DROP TABLE goods;

INSERT INTO photographers SELECT id, jsonb_build_object('id', id, 'name', name, 'email', id || '@example.com', 'open', '[]'::jsonb, 'done', 0)
  FROM (VALUES ('ada', 'Ada Fall'), ('ben', 'Ben Hill'), ('cleo', 'Cleo Marsh'), ('dov', 'Dov Reed'), ('eva', 'Eva Stone')) AS people (id, name);

-- Cards that end three years from now, one that ended last year, and one that covers next to nothing.
INSERT INTO credit_cards SELECT id, jsonb_build_object(
  'user', id, 'last4', last4, 'expires', to_char(now() + make_interval(years => years), 'YYYY-MM'), 'limit', cents)
  FROM (VALUES ('ann', '1111', 3, 100000), ('bob', '4444', 3, 100000), ('cy', '0009', 3, 100000), ('dee', '0004', -1, 100000), ('flo', '1117', 3, 1000))
  AS cards (id, last4, years, cents);
