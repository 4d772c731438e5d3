//! The shop's pages: HTML for a browser, the same as JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use crate::api::{CustomerCart, Money, OrderResult, Product};
use crate::message::ServiceResponse;

/// Room for most pages without growing.
const USUAL_PAGE_BYTES: usize = 8192;

/// Something that can be shown.
pub(crate) trait HtmlPage: Serialize {
    /// Writes what is inside `<main>`.
    fn write_html(&self, out: &mut String);
    /// Currencies to choose from; empty when the page has none.
    fn currencies(&self) -> &[String] {
        &[]
    }
}

/// As HTML, or as JSON.
pub(crate) fn render_page(page: &impl HtmlPage, html: bool) -> ServiceResponse {
    if !html {
        let text = serde_json::to_vec(page).expect("pages have text keys and finite numbers");
        return ServiceResponse::new("application/json", text);
    }
    let mut out = String::with_capacity(USUAL_PAGE_BYTES);
    out.push_str("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Boutique</title></head><body>");
    out.push_str("<header><a href=\"/\">Boutique</a><form method=\"post\" action=\"/setCurrency\"><select name=\"currency_code\">");
    for code in page.currencies() {
        push_tags(&mut out, &["<option>", code, "</option>"]);
    }
    out.push_str("</select></form></header><main>");
    page.write_html(&mut out);
    out.push_str("</main></body></html>\n");
    ServiceResponse::new("text/html; charset=utf-8", out)
}

/// Pushes pieces by turns: markup as it is, text escaped, markup, …
fn push_tags(out: &mut String, pieces: &[&str]) {
    for (place, piece) in pieces.iter().enumerate() {
        if place % 2 == 0 {
            out.push_str(piece)
        } else {
            push_escaped(out, piece)
        }
    }
}

/// Text that is safe between tags and within quotes.
fn push_escaped(out: &mut String, text: &str) {
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

fn push_price(out: &mut String, money: &Money) {
    out.push_str("<span class=\"price\">");
    push_escaped(out, &money.currency);
    let _ = write!(
        out,
        " {}.{:02}</span>",
        money.units,
        money.nanos / 10_000_000
    ); // a String takes everything
}

fn push_list(out: &mut String, id: &str, texts: &[String]) {
    push_tags(out, &["<ul id=\"", id, "\">"]);
    texts
        .iter()
        .for_each(|text| push_tags(out, &["<li>", text, "</li>"]));
    out.push_str("</ul>");
}

fn push_cart_size(out: &mut String, size: usize) {
    let _ = write!(out, "<a id=\"cart\" href=\"/cart\">{size} in the cart</a>");
}

fn push_product_card(out: &mut String, product: &Product) {
    push_tags(
        out,
        &[
            "<article><h2><a href=\"/product/",
            &product.id,
            "\">",
            &product.name,
            "</a></h2>",
        ],
    );
    push_price(out, &product.price);
    push_tags(out, &["<p>", &product.description, "</p></article>"]);
}

/// `GET /`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrontPage {
    pub(crate) currencies: Vec<String>,
    pub(crate) cart_size: usize,
    pub(crate) products: Vec<Product>,
    pub(crate) ads: Vec<String>,
}

impl HtmlPage for FrontPage {
    fn write_html(&self, out: &mut String) {
        push_cart_size(out, self.cart_size);
        out.push_str("<section id=\"products\">");
        self.products
            .iter()
            .for_each(|product| push_product_card(out, product));
        out.push_str("</section>");
        push_list(out, "ads", &self.ads);
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

impl HtmlPage for ProductPage {
    fn write_html(&self, out: &mut String) {
        push_cart_size(out, self.cart_size);
        push_tags(
            out,
            &[
                "<h1>",
                &self.product.name,
                "</h1><p>",
                &self.product.description,
                "</p>",
            ],
        );
        push_price(out, &self.price);
        push_list(out, "recommendations", &self.recommendations);
        push_list(out, "ads", &self.ads);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /cart`
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct CartFilledPage(pub(crate) CustomerCart);

impl HtmlPage for CartFilledPage {
    fn write_html(&self, out: &mut String) {
        out.push_str("<ul id=\"items\">");
        for item in &self.0.items {
            let _ = write!(out, "<li>{} × ", item.quantity);
            push_tags(out, &["", &item.product_id, "</li>"]);
        }
        out.push_str("</ul>");
    }
}

/// A line of [`CartPage`].
#[derive(Serialize)]
pub(crate) struct CartEntry {
    pub(crate) product: String,
    pub(crate) quantity: u32,
    pub(crate) price: Money,
}

/// `GET /cart`
#[derive(Serialize)]
pub(crate) struct CartPage {
    pub(crate) currencies: Vec<String>,
    pub(crate) recommendations: Vec<String>,
    pub(crate) items: Vec<CartEntry>,
    pub(crate) shipping: Money,
    pub(crate) total: Money,
}

impl HtmlPage for CartPage {
    fn write_html(&self, out: &mut String) {
        out.push_str("<table id=\"items\">");
        for entry in &self.items {
            push_tags(out, &["<tr><td>", &entry.product, "</td><td>"]);
            let _ = write!(out, "{}</td><td>", entry.quantity);
            push_price(out, &entry.price);
            out.push_str("</td></tr>");
        }
        out.push_str("</table><p>Shipping: ");
        push_price(out, &self.shipping);
        out.push_str("</p><p>In all: ");
        push_price(out, &self.total);
        out.push_str("</p>");
        push_list(out, "recommendations", &self.recommendations);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /cart/checkout`
#[derive(Serialize)]
pub(crate) struct OrderPage {
    pub(crate) order: OrderResult,
    pub(crate) recommendations: Vec<String>,
    pub(crate) currencies: Vec<String>,
}

impl HtmlPage for OrderPage {
    fn write_html(&self, out: &mut String) {
        push_tags(
            out,
            &[
                "<h1>Thank you</h1><p id=\"orderId\">",
                &self.order.order_id,
                "</p><p>Parcel ",
            ],
        );
        push_tags(out, &["", &self.order.tracking_id, "</p><p>Paid: "]);
        push_price(out, &self.order.total);
        out.push_str("</p>");
        push_list(out, "recommendations", &self.recommendations);
    }

    fn currencies(&self) -> &[String] {
        &self.currencies
    }
}

/// `POST /setCurrency`
#[derive(Serialize)]
pub(crate) struct CurrencyPage {
    pub(crate) currency: String,
}

impl HtmlPage for CurrencyPage {
    fn write_html(&self, out: &mut String) {
        push_tags(out, &["<p id=\"currency\">", &self.currency, "</p>"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        push_tags(&mut out, &["<p>", "Salt & \"Pepper\" <'b'>", "</p>"]);
        assert_eq!(
            out,
            "<p>Salt &amp; &quot;Pepper&quot; &lt;&#39;b&#39;&gt;</p>"
        );
    }

    #[test]
    fn one_page_two_ways() {
        let page = CurrencyPage {
            currency: "EUR".into(),
        };
        let (html, json) = (render_page(&page, true), render_page(&page, false));
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
