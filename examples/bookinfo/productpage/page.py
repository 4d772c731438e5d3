"""Renders a book as HTML. Links and forms hold a query alone, so the page works below any path."""

import html
import urllib.parse

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
  body {{ font: 16px/1.5 sans-serif; max-width: 40em; margin: 2em auto; padding: 0 1em; color: #222 }}
  dt {{ color: #666; float: left; clear: left; width: 7em }}
  blockquote {{ margin: 1em 0; padding-left: 1em; border-left: 3px solid #ccc }}
  .missing {{ background: #fff3cd; padding: .5em 1em }}
  .stars {{ color: #b8860b }}
</style>
<nav>{books}</nav>
<h1>{title}</h1>
<h2>Details</h2>
{details}
<h2>Reviews</h2>
{reviews}
</html>
"""

FORM = """<form method="post" action="{action}">
  <select name="reviewer">{reviewers}</select>
  <input name="stars" type="number" min="1" max="5" value="5">
  <button>Rate</button>
  <small>Ratings are from <code>{ratings}</code>.</small>
</form>
"""


def escape(value):
    return html.escape(str(value))


def render(content, titles):
    """Returns the page of a book. `titles` are those of all books."""
    query = {"ratings": content["ratings"]} if content["ratings"] else {}
    links = (
        f'<a href="{link(query, book)}">{escape(title)}</a>' for book, title in titles.items()
    )
    return PAGE.format(
        title=escape(content["title"]),
        books=" · ".join(links),
        details=details_part(content),
        reviews=reviews_part(content, link(query, content["book"])),
    )


def link(query, book):
    return escape("?" + urllib.parse.urlencode({"book": book, **query}))


def missing_part(name, missing):
    return f'<p class="missing"><code>{escape(name)}</code> is not available: {escape(missing[name])}</p>\n'


def details_part(content):
    if content["details"] is None:
        return missing_part("details", content["missing"])
    rows = (f"<dt>{escape(key)}<dd>{escape(value)}" for key, value in content["details"].items())
    return "<dl>\n" + "\n".join(rows) + "\n</dl>\n"


def reviews_part(content, action):
    if content["reviews"] is None:
        return missing_part("reviews", content["missing"])
    parts = [review_part(review) for review in content["reviews"]]
    if content["ratings"] in content["missing"]:
        return "".join(parts) + missing_part(content["ratings"], content["missing"])
    reviewers = "".join(f"<option>{escape(review['reviewer'])}</option>" for review in content["reviews"])
    form = FORM.format(action=action, reviewers=reviewers, ratings=escape(content["ratings"]))
    return "".join(parts) + form


def review_part(review):
    stars = review["stars"]
    shown = "no stars" if stars is None else "★" * stars + "☆" * (5 - stars)
    text, reviewer = escape(review["text"]), escape(review["reviewer"])
    return f'<blockquote>{text}<br><span class="stars">{shown}</span> {reviewer}</blockquote>\n'
