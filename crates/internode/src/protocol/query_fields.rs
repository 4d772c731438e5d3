//! Fields of a request's query.

/// Returns the value of a query's first field of a name.
pub(super) fn find_field<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = query.split('&').filter_map(|field| field.split_once('='));
    fields.find_map(|(key, value)| (key == name).then_some(value))
}
