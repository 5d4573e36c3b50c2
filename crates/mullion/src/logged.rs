//! Formats the fields of a log line: the message, then `name=value`, all in one line.
//!
//! The client library prints an error of the API server as message, reason and then the whole Status in Rust's debug form. A reader of the
//! log needs only the first two.

use std::fmt::{self, Debug};

use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt,
    fmt::{FormatFields, format},
};

/// The text after which the client library prints the whole Status.
const STATUS: &str = " (Status {";

/// Returns the format in which the log writes the fields of a line.
pub(crate) fn fields() -> impl for<'writer> FormatFields<'writer> {
    format::debug_fn(write_field).delimited(" ")
}

fn write_field(writer: &mut format::Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name => {
            let text = format!("{value:?}");
            write!(writer, "{name}={}", brief(&text))
        }
    }
}

fn brief(text: &str) -> &str {
    text.split_once(STATUS).map_or(text, |(head, _)| head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_api_server_is_its_message_and_reason() {
        let status = kube::core::Status::failure("the object has been modified", "Conflict");
        let text = kube::Error::Api(status.with_code(409).boxed()).to_string();
        assert!(text.contains(STATUS), "{text}");
        assert_eq!(
            brief(&text),
            "ApiError: the object has been modified: Conflict"
        );
        assert_eq!(brief("no such file"), "no such file");
    }
}
