//! Header fields that only the platform sets, in HTTP and in the heads of messages.

/// Field that names the calling function to the called one, `NAME.NAMESPACE`. Calls from outside
/// have none.
pub const CALLER_FIELD: &str = "x-nearpath-caller";
/// Field that names the called function to another node, `NAME.NAMESPACE`.
pub const FUNCTION_FIELD: &str = "x-nearpath-function";
/// Field that names the topic of an event to another node. Calls have none.
pub const TOPIC_FIELD: &str = "x-nearpath-topic";
/// Start of the names of fields that only the platform sets.
const PLATFORM_PREFIX: &str = "x-nearpath-";
/// Field of errors that names the part of the platform that made them.
pub const INTERNAL_FIELD: &str = "x-openfaas-internal";

/// Returns whether only the platform may set a field. `name` is in lower case.
pub fn is_platform_field(name: &str) -> bool {
    name.starts_with(PLATFORM_PREFIX) || name == INTERNAL_FIELD
}
