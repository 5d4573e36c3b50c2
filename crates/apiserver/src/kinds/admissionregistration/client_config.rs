//! What makes the address of a webhook valid: a URL, or a service with a path (upstream: apiserver/pkg/util/webhook/validation.go).

use serde_json::Value;

use crate::{
    field::{Errors, Path, quote},
    kinds::tree::Tree,
    validation::{check, names},
};

const FORM: &str = "; desired format: https://host[/path]";

/// Records what is wrong with a `WebhookClientConfig`.
pub(in crate::kinds) fn client_config(config: &Value, path: &Path<'_>, errors: &mut Errors) {
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
            let why = format!(
                "url must be a valid URL: parse {}: {why}{FORM}",
                quote(text)
            );
            return errors.required(path, why);
        }
    };
    if url.scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.invalid(path, url.scheme, why);
    }
    if url.host.is_empty() {
        errors.invalid(path, "", format!("host must be provided{FORM}"));
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

/// A URL in the parts that Go's `url.Parse` takes it into.
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = match rest.split_once(':') {
            Some(("", _)) => return Err("missing protocol scheme".to_owned()),
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            Some((first, _)) if !first.contains(['/', '?']) => {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
            _ => (String::new(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url = Url {
            scheme,
            user: None,
            host: "",
            query,
            fragment,
        };
        if let Some(rest) = rest.strip_prefix("//") {
            let authority = rest.split('/').next().unwrap_or_default();
            (url.user, url.host) = match authority.rsplit_once('@') {
                Some((user, host)) => (Some(user), host),
                None => (None, authority),
            };
            check_host(url.host)?;
        }
        Ok(url)
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((_, port)) => port,
            None => return Err("missing ']' in host".to_owned()),
        },
        None => host.find(':').map_or("", |colon| &host[colon..]),
    };
    let is_port = |port: &str| port.chars().all(|c| c.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return Err(format!("invalid port {} after host", quote(port)));
    }
    match host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        Some(odd) => Err(format!(
            "invalid character {} in host name",
            quote(&odd.to_string())
        )),
        None => Ok(()),
    }
}

fn service_of(service: &Value, path: &Path<'_>, errors: &mut Errors) {
    if service.text("name").is_empty() {
        errors.required(&path.child("name"), "service name is required");
    }
    if service.text("namespace").is_empty() {
        errors.required(&path.child("namespace"), "service namespace is required");
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
    // Upstream leaves out the first character, whatever it is.
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
        let text = |error: &crate::field::FieldError| format!("{}: {}", error.field, error.body());
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
            "clientConfig.url: Invalid value: \"\": host must be provided; desired format: https://host[/path]"
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
             clientConfig.url: Invalid value: \"\": host must be provided; desired format: https://host[/path]"
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
            "clientConfig.service.name: Required value: service name is required | \
             clientConfig.service.namespace: Required value: service namespace is required | \
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
