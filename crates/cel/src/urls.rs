//! URL functions with the semantics of Go's parser. Source: k8s.io/apiserver/pkg/cel/library/urls.go.

use std::{collections::HashMap, sync::Arc};

use kube_cel::cel::{
    Value,
    objects::{Key, Map, Opaque},
};
use mullion_kube_text::golang::url::Url;

use super::{error::EvalError, values::text};

#[derive(Debug, PartialEq, Eq)]
struct UrlValue(Url);

impl Opaque for UrlValue {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.URL"
    }
}

/// Calls a URL function; `None` if the function is not one.
pub(super) fn call(
    function: &str,
    target: Option<&Value>,
    arguments: &[Value],
) -> Option<Result<Value, EvalError>> {
    match (function, target, arguments) {
        ("isURL", None, [Value::String(given)]) => {
            Some(Ok(Value::Bool(Url::check_request(given).is_ok())))
        }
        ("url", None, [Value::String(given)]) => {
            // Kubernetes uses `ParseRequestURI`, which refuses relative URLs.
            let read = Url::check_request(given).and_then(|()| Url::parse(given));
            let read = read.map(|url| Value::Opaque(Arc::new(UrlValue(url))));
            Some(read.map_err(|why| EvalError::Url(Box::new(why))))
        }
        (_, Some(Value::Opaque(opaque)), []) => {
            let UrlValue(url) = opaque.downcast_ref()?;
            part(function, url).map(Ok)
        }
        _ => None,
    }
}

fn part(function: &str, url: &Url) -> Option<Value> {
    Some(match function {
        "getScheme" => text(&url.scheme),
        "getHost" => text(&url.host),
        "getHostname" => text(url.host_and_port().0),
        "getPort" => text(url.host_and_port().1),
        "getEscapedPath" => text(url.escaped_path()),
        "getQuery" => {
            let values = url.query_values().into_iter().map(|(name, values)| {
                let values = values.into_iter().map(text).collect();
                (Key::String(Arc::new(name)), Value::List(Arc::new(values)))
            });
            Value::Map(Map {
                map: Arc::new(values.collect::<HashMap<_, _>>()),
            })
        }
        _ => return None,
    })
}
