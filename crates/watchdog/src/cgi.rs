//! Environment variables that describe a request to a process of the forking modes: `Http_Method`,
//! `Http_Path`, `Http_Query`, `Http_Content_Length`, `Http_Transfer_Encoding`, and `Http_NAME` for
//! each header.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, request};

/// Returns the variables of one request. Of a repeated header the first value counts, and no header
/// can replace one of the request's own parts. The prefix in small letters keeps a `Proxy` header
/// from becoming `HTTP_PROXY` (CVE-2016-5385).
pub fn cgi_variables(
    request: &request::Parts,
    body_bytes: Option<u64>,
) -> BTreeMap<OsString, OsString> {
    let mut variables = BTreeMap::new();
    for name in request.headers.keys() {
        let value = request.headers[name].as_bytes().to_vec();
        variables.insert(variable_name(name.as_str()), OsString::from_vec(value));
    }
    // After the headers, and removed when absent: a header `Method` must not stand in for the
    // method.
    let mut set = |name: &str, value: Option<String>| {
        let name = OsString::from(name);
        match value {
            Some(value) => variables.insert(name, value.into()),
            None => variables.remove(&name),
        };
    };
    set("Http_Method", Some(request.method.as_str().to_owned()));
    set("Http_Path", Some(request.uri.path().to_owned()));
    // of-watchdog sets the variable only for a query that is not empty.
    set(
        "Http_Query",
        request
            .uri
            .query()
            .filter(|query| !query.is_empty())
            .map(str::to_owned),
    );
    set(
        "Http_Content_Length",
        header_text(&request.headers, CONTENT_LENGTH).or(body_bytes.map(|n| n.to_string())),
    );
    set(
        "Http_Transfer_Encoding",
        header_text(&request.headers, TRANSFER_ENCODING),
    );
    variables
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Converts `x-call-id` to `Http_X_Call_Id`: Go's canonical header name, with underscores for
/// dashes.
fn variable_name(header: &str) -> OsString {
    let mut name = String::with_capacity("Http_".len() + header.len());
    name.push_str("Http_");
    let mut starts = true;
    for c in header.chars() {
        name.push(if starts { c.to_ascii_uppercase() } else { c });
        starts = c == '-';
    }
    name.replace('-', "_").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn variables_of(request: Request<()>, length: Option<u64>) -> BTreeMap<String, String> {
        let text = |text: OsString| text.into_string().unwrap();
        cgi_variables(&request.into_parts().0, length)
            .into_iter()
            .map(|(k, v)| (text(k), text(v)))
            .collect()
    }

    #[test]
    fn names_of_the_contract() {
        let request = Request::post("http://f/a/b?c=d&e")
            .header("X-Call-Id", "7")
            .header("content-length", "3")
            .header("transfer-encoding", "chunked")
            .header("X-Many", "one")
            .header("X-Many", "two")
            .body(());
        let got = variables_of(request.unwrap(), None);
        for (name, value) in [
            ("Http_Method", "POST"),
            ("Http_Path", "/a/b"),
            ("Http_Query", "c=d&e"),
            ("Http_Content_Length", "3"),
            ("Http_Transfer_Encoding", "chunked"),
            ("Http_X_Call_Id", "7"),
            ("Http_X_Many", "one"),
        ] {
            assert_eq!(got.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn a_header_cannot_pose_as_a_part_of_the_request() {
        let request = Request::get("/x")
            .header("method", "DELETE")
            .header("path", "/etc")
            .header("query", "q");
        let got = variables_of(request.header("proxy", "evil").body(()).unwrap(), Some(0));
        assert_eq!(
            (got["Http_Method"].as_str(), got["Http_Path"].as_str()),
            ("GET", "/x")
        );
        assert!(!got.contains_key("Http_Query") && !got.contains_key("HTTP_PROXY"));
        assert_eq!(got["Http_Content_Length"], "0");
    }
}
