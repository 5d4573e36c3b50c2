//! Validates the address of a webhook: a URL, or a service with a path (source: apiserver/pkg/util/webhook/validation.go).

use mullion_kube_text::{
    field::{Errors, Path},
    golang::url::Url,
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

const FORM: &str = "; desired format: https://host[/path]";

/// Records the errors of a `WebhookClientConfig`.
pub fn client_config(config: &Value, path: &Path<'_>, errors: &mut Errors) {
    let url = config.field("url").and_then(Value::as_str);
    match (url, config.field("service")) {
        (Some(address), None) => url_of(address, &path.child("url"), errors),
        (None, Some(service)) => service_of(service, &path.child("service"), errors),
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

fn url_of(text: &str, path: &Path<'_>, errors: &mut Errors) {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(why) => {
            return errors.required(path, format!("url must be a valid URL: {why}{FORM}"));
        }
    };
    if url.scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid(path, url.scheme, why);
    }
    if url.host.is_empty() {
        errors.invalid(path, "", format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        let why = "user information is not permitted in the URL";
        errors.invalid(path, user, why);
    }
    if !url.fragment.is_empty() {
        let why = "fragments are not permitted in the URL";
        errors.invalid(path, url.fragment, why);
    }
    if !url.query.is_empty() {
        let why = "query parameters are not permitted in the URL";
        errors.invalid(path, url.query, why);
    }
}

fn service_of(service: &Value, path: &Path<'_>, errors: &mut Errors) {
    // kube-apiserver passes these two to its check in the wrong order, so the error about one names the other.
    for (field, named) in [("namespace", "name"), ("name", "namespace")] {
        if service.text(field).is_empty() {
            errors.required(&path.child(named), "");
        }
    }
    let port = service.integer("port").unwrap_or(0);
    let problems = names::port_number(port);
    if !problems.is_empty() {
        let why = format!("port is not valid: {}", problems.join(", "));
        errors.invalid(&path.child("port"), port, why);
    }
    if let Some(url_path) = service.field("path").and_then(Value::as_str) {
        path_of(url_path, &path.child("path"), errors);
    }
}

fn path_of(text: &str, path: &Path<'_>, errors: &mut Errors) {
    match text {
        "" | "/" => return,
        "//" => return errors.invalid(path, text, "segment[0] may not be empty"),
        _ => {}
    }
    if !text.starts_with('/') {
        errors.invalid(path, text, "must start with a '/'");
    }
    // kube-apiserver drops the first character, even if it is not a slash.
    let mut chars = text.chars();
    chars.next();
    let rest = chars.as_str();
    let steps = rest.strip_suffix('/').unwrap_or(rest).split('/');
    for (index, step) in steps.enumerate() {
        if step.is_empty() {
            errors.invalid(path, text, format!("segment[{index}] may not be empty"));
            continue;
        }
        let sentences = names::dns_subdomain(step).into_iter();
        let sentences = sentences.map(|why| format!("segment[{index}]: {why}"));
        check(errors, path, text, sentences.collect());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(config: Value) -> Vec<String> {
        let mut errors = Errors::default();
        client_config(&config, &Path::new("clientConfig"), &mut errors);
        let text = |error: &mullion_kube_text::field::FieldError| {
            format!("{}: {}", error.field, error.body())
        };
        errors.0.iter().map(text).collect()
    }

    #[test]
    fn urls_are_https_and_nothing_but_an_address() {
        for good in [
            "https://127.0.0.1:1/x",
            "https://h",
            "https://[::1]:8443/a/b",
        ] {
            assert_eq!(found(json!({"url": good})), [""; 0], "{good}");
        }
        let one = |url: &str| found(json!({"url": url})).join(" | ");
        assert_eq!(
            one("http://h"),
            "clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
        );
        assert_eq!(
            one("https:///x"),
            "clientConfig.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]"
        );
        assert_eq!(
            one("https://u:p@h?a=b#c"),
            "clientConfig.url: Invalid value: \"u:p\": user information is not permitted in the URL | \
             clientConfig.url: Invalid value: \"c\": fragments are not permitted in the URL | \
             clientConfig.url: Invalid value: \"a=b\": query parameters are not permitted in the URL"
        );
        assert_eq!(
            one("https://h:x/"),
            "clientConfig.url: Required value: url must be a valid URL: parse \"https://h:x/\": invalid port \":x\" after host; \
             desired format: https://host[/path]"
        );
        assert_eq!(
            one("h/x"),
            "clientConfig.url: Invalid value: \"\": 'https' is the only allowed URL scheme; desired format: https://host[/path] | \
             clientConfig.url: Invalid value: \"\": host must be specified; desired format: https://host[/path]"
        );
    }

    #[test]
    fn a_service_has_a_name_a_namespace_and_a_port() {
        let service = |service: Value| found(json!({"service": service})).join(" | ");
        assert_eq!(
            service(json!({"name": "n", "namespace": "s", "port": 443, "path": "/a/b-1/"})),
            ""
        );
        assert_eq!(
            service(json!({"port": 0, "path": "a/B"})),
            "clientConfig.service.name: Required value | \
             clientConfig.service.namespace: Required value | \
             clientConfig.service.port: Invalid value: 0: port is not valid: must be between 1 and 65535, inclusive | \
             clientConfig.service.path: Invalid value: \"a/B\": must start with a '/' | \
             clientConfig.service.path: Invalid value: \"a/B\": segment[0] may not be empty | \
             clientConfig.service.path: Invalid value: \"a/B\": segment[1]: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
             characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        );
        assert_eq!(
            found(json!({})),
            ["clientConfig: Required value: exactly one of url or service is required"]
        );
    }
}
