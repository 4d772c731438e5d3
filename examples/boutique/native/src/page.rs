//! The shop's pages: HTML for a browser, the same as JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use crate::goods::{Cart, Money, Order, Product};
use crate::words::Response;

/// Room for most pages without growing.
const USUAL: usize = 8192;

/// Something that can be shown.
pub(crate) trait Page: Serialize {
    /// Writes what is inside `<main>`.
    fn html(&self, out: &mut String);
    /// What can be chosen as currency; nothing when the page does not say.
    fn currencies(&self) -> &[String] {
        &[]
    }
}

/// As HTML, or as JSON.
pub(crate) fn render(page: &impl Page, html: bool) -> Response {
    if !html {
        let text = serde_json::to_vec(page).expect("pages have text keys and finite numbers");
        return Response::new("application/json", text);
    }
    let mut out = String::with_capacity(USUAL);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Boutique</title></head><body>");
    out.push_str("<header><a href=\"/\">Boutique</a><form method=\"post\" action=\"/setCurrency\"><select name=\"currency_code\">");
    for code in page.currencies() {
        tags(&mut out, &["<option>", code, "</option>"]);
    }
    out.push_str("</select></form></header><main>");
    page.html(&mut out);
    out.push_str("</main></body></html>\n");
    Response::new("text/html; charset=utf-8", out)
}

/// Pushes pieces by turns: markup as it is, text escaped, markup, …
fn tags(out: &mut String, pieces: &[&str]) {
    for (place, piece) in pieces.iter().enumerate() {
        if place % 2 == 0 {
            out.push_str(piece)
        } else {
            escape(out, piece)
        }
    }
}

/// Text that is safe between tags and within quotes.
fn escape(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
        out.push_str(&rest[..at]);
        out.push_str(match rest.as_bytes()[at] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            _ => "&#39;",
        });
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

fn price(out: &mut String, money: &Money) {
    out.push_str("<span class=\"price\">");
    escape(out, &money.currency);
    let _ = write!(
        out,
        " {}.{:02}</span>",
        money.units,
        money.nanos / 10_000_000
    ); // a String takes everything
}

fn list(out: &mut String, id: &str, texts: &[String]) {
    tags(out, &["<ul id=\"", id, "\">"]);
    texts
        .iter()
        .for_each(|text| tags(out, &["<li>", text, "</li>"]));
    out.push_str("</ul>");
}

fn cart_size(out: &mut String, size: usize) {
    let _ = write!(out, "<a id=\"cart\" href=\"/cart\">{size} in the cart</a>");
}

fn card(out: &mut String, product: &Product) {
    tags(
        out,
        &[
            "<article><h2><a href=\"/product/",
            &product.id,
            "\">",
            &product.name,
            "</a></h2>",
        ],
    );
    price(out, &product.price);
    tags(out, &["<p>", &product.description, "</p></article>"]);
}

/// `GET /`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Front {
    pub(crate) currencies: Vec<String>,
    pub(crate) cart_size: usize,
    pub(crate) products: Vec<Product>,
    pub(crate) ads: Vec<String>,
}

impl Page for Front {
    fn html(&self, out: &mut String) {
        cart_size(out, self.cart_size);
        out.push_str("<section id=\"products\">");
        self.products.iter().for_each(|product| card(out, product));
        out.push_str("</section>");
        list(out, "ads", &self.ads);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `GET /product/ID`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProductPage {
    pub(crate) currencies: Vec<String>,
    pub(crate) cart_size: usize,
    pub(crate) product: Product,
    /// In the customer's currency.
    pub(crate) price: Money,
    pub(crate) recommendations: Vec<String>,
    pub(crate) ads: Vec<String>,
}

impl Page for ProductPage {
    fn html(&self, out: &mut String) {
        cart_size(out, self.cart_size);
        tags(
            out,
            &[
                "<h1>",
                &self.product.name,
                "</h1><p>",
                &self.product.description,
                "</p>",
            ],
        );
        price(out, &self.price);
        list(out, "recommendations", &self.recommendations);
        list(out, "ads", &self.ads);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /cart`
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Filled(pub(crate) Cart);

impl Page for Filled {
    fn html(&self, out: &mut String) {
        out.push_str("<ul id=\"items\">");
        for item in &self.0.items {
            let _ = write!(out, "<li>{} × ", item.quantity);
            tags(out, &["", &item.product_id, "</li>"]);
        }
        out.push_str("</ul>");
    }
}

/// A line of [`CartPage`].
#[derive(Serialize)]
pub(crate) struct Entry {
    pub(crate) product: String,
    pub(crate) quantity: u32,
    pub(crate) price: Money,
}

/// `GET /cart`
#[derive(Serialize)]
pub(crate) struct CartPage {
    pub(crate) currencies: Vec<String>,
    pub(crate) recommendations: Vec<String>,
    pub(crate) items: Vec<Entry>,
    pub(crate) shipping: Money,
    pub(crate) total: Money,
}

impl Page for CartPage {
    fn html(&self, out: &mut String) {
        out.push_str("<table id=\"items\">");
        for entry in &self.items {
            tags(out, &["<tr><td>", &entry.product, "</td><td>"]);
            let _ = write!(out, "{}</td><td>", entry.quantity);
            price(out, &entry.price);
            out.push_str("</td></tr>");
        }
        out.push_str("</table><p>Shipping: ");
        price(out, &self.shipping);
        out.push_str("</p><p>In all: ");
        price(out, &self.total);
        out.push_str("</p>");
        list(out, "recommendations", &self.recommendations);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /cart/checkout`
#[derive(Serialize)]
pub(crate) struct Thanks {
    pub(crate) order: Order,
    pub(crate) recommendations: Vec<String>,
    pub(crate) currencies: Vec<String>,
}

impl Page for Thanks {
    fn html(&self, out: &mut String) {
        tags(
            out,
            &[
                "<h1>Thank you</h1><p id=\"orderId\">",
                &self.order.order_id,
                "</p><p>Parcel ",
            ],
        );
        tags(out, &["", &self.order.tracking_id, "</p><p>Paid: "]);
        price(out, &self.order.total);
        out.push_str("</p>");
        list(out, "recommendations", &self.recommendations);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /setCurrency`
#[derive(Serialize)]
pub(crate) struct Chosen {
    pub(crate) currency: String,
}

impl Page for Chosen {
    fn html(&self, out: &mut String) {
        tags(out, &["<p id=\"currency\">", &self.currency, "</p>"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        tags(&mut out, &["<p>", "Salt & \"Pepper\" <'b'>", "</p>"]);
        assert_eq!(
            out,
            "<p>Salt &amp; &quot;Pepper&quot; &lt;&#39;b&#39;&gt;</p>"
        );
    }

    #[test]
    fn one_page_two_ways() {
        let page = Chosen {
            currency: "EUR".into(),
        };
        let (html, json) = (render(&page, true), render(&page, false));
        assert_eq!(
            (html.content_type, json.content_type),
            ("text/html; charset=utf-8", "application/json")
        );
        assert_eq!(json.body, "{\"currency\":\"EUR\"}");
        assert!(
            html.body
                .ends_with(b"<main><p id=\"currency\">EUR</p></main></body></html>\n")
        );
    }
}
