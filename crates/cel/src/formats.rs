//! Named string formats in expressions (source: apiserver/pkg/cel/library/format.go).

use std::sync::Arc;

use kube_cel::cel::{Value, objects::Opaque};
use mullion_kube_text::{
    formats,
    golang::url::Url,
    names::{self, NameRule},
};

use super::values::{none, some, text};

const NAMES: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// A format value, identified by its name.
#[derive(Debug, PartialEq, Eq)]
struct Format(&'static str);

impl Opaque for Format {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.NamedFormat"
    }
}

/// Calls a function of the format library; `None` if the function is not one of them.
pub(super) fn call(function: &str, target: Option<&Value>, arguments: &[Value]) -> Option<Value> {
    match (function, target, arguments) {
        ("format.named", None, [Value::String(name)]) => Some(named(name).map_or_else(none, some)),
        // Each named format is also a function without arguments, such as `format.uuid()`.
        (function, None, []) => named(function.strip_prefix("format.")?),
        ("validate", Some(Value::Opaque(format)), [Value::String(given)]) => {
            let Format(name) = format.downcast_ref::<Format>()?;
            let wrong = problems(name, given);
            if wrong.is_empty() {
                return Some(none());
            }
            let wrong = wrong.into_iter().map(text).collect();
            Some(some(Value::List(Arc::new(wrong))))
        }
        _ => None,
    }
}

fn named(name: &str) -> Option<Value> {
    let known = NAMES.iter().find(|known| **known == name)?;
    Some(Value::Opaque(Arc::new(Format(known))))
}

/// Returns the errors of a text that does not have a format.
fn problems(format: &str, given: &str) -> Vec<String> {
    let why = match format {
        "dns1123Label" => return names::dns_label(given),
        "dns1123LabelPrefix" => return names::by_rule(NameRule::DnsLabel, given, true),
        "dns1123Subdomain" => return names::dns_subdomain(given),
        "dns1123SubdomainPrefix" => return names::by_rule(NameRule::DnsSubdomain, given, true),
        "dns1035Label" => return names::dns1035_label(given),
        "dns1035LabelPrefix" => return names::dns1035_label(&names::masked(given)),
        "qualifiedName" => return names::qualified_name(given),
        "labelValue" => return names::label_value(given),
        "uri" => {
            let refused = Url::check_request(given).err();
            return refused.iter().map(ToString::to_string).collect();
        }
        "uuid" => "does not match the UUID format".to_owned(),
        "byte" => "invalid base64".to_owned(),
        _ => format!("invalid {format}"),
    };
    if formats::holds(format, given) {
        Vec::new()
    } else {
        vec![why]
    }
}
