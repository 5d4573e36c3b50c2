//! Parses the webhooks of a configuration into the form that calling them needs.

use std::{sync::Arc, time::Duration};

use base64::{DecodeError, Engine, engine::general_purpose::STANDARD};
use mullion_kinds::request::expression::{Expression, ExpressionError};
use mullion_kube_text::validation::selector::{Selector, SelectorError};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::client::{Address, Place};
use crate::admission::Operation;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const HTTPS: u16 = 443;

/// Which writes a webhook or a policy wants to see.
pub(super) struct Matcher {
    /// The name of the webhook or policy.
    pub(super) name: String,
    pub(super) rules: Vec<Rule>,
    /// True if an empty list of rules matches every write, as in a binding that narrows nothing.
    pub(super) open: bool,
    /// The rules whose requests are excluded (`excludeResourceRules`).
    pub(super) excluded: Vec<Rule>,
    /// True for `matchPolicy: Equivalent`: requests for the same resource in another group or version match too.
    pub(super) equivalent: bool,
    pub(super) namespaces: Result<Selector, SelectorError>,
    pub(super) objects: Result<Selector, SelectorError>,
    pub(super) conditions: Vec<Result<Expression, ExpressionError>>,
    /// True for `failurePolicy: Fail`: a request is refused if the webhook or policy cannot be evaluated.
    pub(super) fails: bool,
}

impl Matcher {
    /// Parses the selectors of a webhook, policy or binding, and the rules in the field `rules`; match conditions are left empty.
    pub(super) fn of(name: &str, given: &Value, rules: &str) -> Self {
        let selector = |field: &str| match given.field(field) {
            Some(selector) => Selector::from_label_selector(selector),
            None => Ok(Selector::everything()),
        };
        let rules_of = |field: &str| given.items(field).iter().map(Rule::of).collect();
        Matcher {
            name: name.to_owned(),
            rules: rules_of(rules),
            open: false,
            excluded: rules_of("excludeResourceRules"),
            equivalent: given.text("matchPolicy") == "Equivalent",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            conditions: Vec::new(),
            fails: true,
        }
    }
}

/// A webhook of a webhook configuration.
pub(super) struct Hook {
    pub(super) matcher: Matcher,
    pub(super) has_side_effects: bool,
    /// True if the webhook is called again when a later mutator changes the object (`reinvocationPolicy: IfNeeded`).
    pub(super) reinvoked: bool,
    pub(super) timeout: Duration,
    /// The version of AdmissionReview it is sent; the first it takes of those there are.
    pub(super) review: Option<ReviewVersion>,
    pub(super) url: String,
    pub(super) address: Result<Address, AddressError>,
}

/// The reason why a webhook has no usable address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    /// The number is not a port.
    #[error("{0} is no port")]
    Port(i64),
    /// The URL cannot be parsed, for this reason.
    #[error("{0}")]
    Url(String),
    /// The configuration names neither a service nor a host.
    #[error("webhook configuration must have either service or URL")]
    NoHost,
    /// The authorities are not base64.
    #[error("its caBundle is not base64: {0}")]
    Authority(DecodeError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1Beta1,
}

impl ReviewVersion {
    /// Returns the `apiVersion` of reviews.
    pub(super) fn api_version(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "admission.k8s.io/v1",
            ReviewVersion::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// A `RuleWithOperations`.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource, either of them perhaps `*`, the latter empty for the resource itself.
    resources: Vec<(String, String)>,
    /// Names of objects; none is every name.
    objects: Vec<String>,
    scope: Scopes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scopes {
    All,
    Namespaced,
    Cluster,
}

fn strings(value: &Value, field: &str) -> Vec<String> {
    let items = value.items(field).iter();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn has(listed: &[String], wanted: &str) -> bool {
    listed.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let resources = strings(rule, "resources").into_iter();
        let split = |text: String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text, String::new()),
        };
        Rule {
            operations: strings(rule, "operations"),
            groups: strings(rule, "apiGroups"),
            versions: strings(rule, "apiVersions"),
            resources: resources.map(split).collect(),
            objects: strings(rule, "resourceNames"),
            scope: match rule.text("scope") {
                "Namespaced" => Scopes::Namespaced,
                "Cluster" => Scopes::Cluster,
                _ => Scopes::All,
            },
        }
    }

    /// Returns whether the rule matches such a request, in a namespace or not.
    pub(super) fn matches(
        &self,
        operation: Operation,
        group: &str,
        version: &str,
        resource: &str,
        subresource: &str,
        in_namespace: bool,
    ) -> bool {
        let in_scope = match self.scope {
            Scopes::All => true,
            Scopes::Namespaced => in_namespace,
            Scopes::Cluster => !in_namespace,
        };
        in_scope
            && self.concerns(operation, group, resource, subresource)
            && has(&self.versions, version)
    }

    /// Returns whether the rule matches objects of that name.
    pub(super) fn is_for(&self, name: &str) -> bool {
        self.objects.is_empty() || self.objects.iter().any(|object| object == name)
    }

    /// Returns whether the rule matches such a request in any version and scope.
    pub(super) fn concerns(
        &self,
        operation: Operation,
        group: &str,
        resource: &str,
        subresource: &str,
    ) -> bool {
        has(&self.operations, operation.as_str())
            && has(&self.groups, group)
            && self.names(resource, subresource)
    }

    fn names(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|(named, part)| {
            (named == "*" || named == resource) && (part == "*" || part == subresource)
        })
    }
}

impl Hook {
    /// Returns the webhooks of a configuration.
    pub(super) fn all_of(configuration: &Value) -> impl Iterator<Item = Arc<Hook>> {
        let hooks = configuration.items("webhooks").iter();
        hooks.map(|hook| Arc::new(Hook::of(hook)))
    }

    fn of(hook: &Value) -> Self {
        let conditions = hook.items("matchConditions").iter();
        let compile = |condition: &Value| {
            let made = Expression::compile(condition.text("expression").trim());
            made.map_err(ExpressionError::from)
        };
        let mut matcher = Matcher::of(hook.text("name"), hook, "rules");
        matcher.conditions = conditions.map(compile).collect();
        // The v1 default is Fail, so anything but Ignore fails.
        matcher.fails = hook.text("failurePolicy") != "Ignore";
        let versions = strings(hook, "admissionReviewVersions");
        let seconds = hook.integer("timeoutSeconds");
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let config = hook.get("clientConfig").unwrap_or(&Value::Null);
        let (url, place) = target(config);
        let authority = STANDARD.decode(config.text("caBundle"));
        let address = place.and_then(|place| match authority {
            Ok(authority) => Ok(Address { place, authority }),
            Err(error) => Err(AddressError::Authority(error)),
        });
        Hook {
            matcher,
            has_side_effects: !["None", "NoneOnDryRun"].contains(&hook.text("sideEffects")),
            reinvoked: hook.text("reinvocationPolicy") == "IfNeeded",
            timeout: seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            // The first version that both sides know, in the order of the configuration.
            review: versions.iter().find_map(|version| match version.as_str() {
                "v1" => Some(ReviewVersion::V1),
                "v1beta1" => Some(ReviewVersion::V1Beta1),
                _ => None,
            }),
            url,
            address,
        }
    }
}

/// Returns the URL and the network location of a `clientConfig`.
fn target(config: &Value) -> (String, Result<Place, AddressError>) {
    if let Some(service) = config.field("service") {
        let (namespace, name) = (service.text("namespace"), service.text("name"));
        let port = service.integer("port").unwrap_or(HTTPS.into());
        let path = service.text("path").trim_matches('/');
        let url = format!("https://{name}.{namespace}.svc:{port}/{path}");
        let place = match u16::try_from(port) {
            Ok(port) => Ok(Place::Service {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port,
            }),
            Err(_) => Err(AddressError::Port(port)),
        };
        return (url, place);
    }
    let url = config.text("url").trim_end_matches('/');
    let place = url.parse::<http::Uri>();
    let place = place.map_err(|error| AddressError::Url(error.to_string()));
    // Without a path a request is for the root.
    let full = match &place {
        Ok(parsed) if parsed.path() == "/" => format!("{url}/"),
        _ => url.to_owned(),
    };
    let place = place.and_then(|parsed| {
        let host = parsed.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(AddressError::NoHost);
        }
        Ok(Place::Host {
            host: host.to_owned(),
            port: parsed.port_u16().unwrap_or(HTTPS),
        })
    });
    (full, place)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(rule: Value, operation: Operation, resource: &str, subresource: &str) -> bool {
        Rule::of(&rule).matches(operation, "", "v1", resource, subresource, true)
    }

    #[test]
    fn rules_match_by_operation_group_version_resource_and_scope() {
        let rule = |resources: &[&str]| json!({"operations": ["CREATE", "CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": resources});
        assert!(matches(rule(&["pods"]), Operation::Create, "pods", ""));
        assert!(!matches(rule(&["pods"]), Operation::Update, "pods", ""));
        assert!(!matches(
            rule(&["pods"]),
            Operation::Create,
            "pods",
            "status"
        ));
        assert!(matches(rule(&["*"]), Operation::Create, "services", ""));
        assert!(!matches(rule(&["*"]), Operation::Create, "pods", "status"));
        assert!(matches(
            rule(&["pods/*"]),
            Operation::Connect,
            "pods",
            "exec"
        ));
        assert!(matches(rule(&["pods/*"]), Operation::Create, "pods", ""));
        assert!(matches(
            rule(&["*/exec"]),
            Operation::Connect,
            "pods",
            "exec"
        ));
        assert!(matches(rule(&["*/*"]), Operation::Create, "pods", ""));
        let mut scoped = rule(&["pods"]);
        scoped["scope"] = "Cluster".into();
        assert!(!matches(scoped.clone(), Operation::Create, "pods", ""));
        scoped["scope"] = "Namespaced".into();
        assert!(matches(scoped.clone(), Operation::Create, "pods", ""));
        scoped["apiGroups"] = json!(["apps"]);
        assert!(!matches(scoped.clone(), Operation::Create, "pods", ""));
        scoped["apiGroups"] = json!(["*"]);
        scoped["apiVersions"] = json!(["v2"]);
        assert!(!matches(scoped, Operation::Create, "pods", ""));
    }

    #[test]
    fn a_target_is_a_host_or_a_service_with_a_port_of_its_own() {
        let (url, place) = target(&json!({"url": "https://[::1]:8443/a"}));
        assert_eq!(url, "https://[::1]:8443/a");
        let host = |host: &str, port| Place::Host {
            host: host.to_owned(),
            port,
        };
        assert_eq!(place, Ok(host("::1", 8443)));
        let (url, place) = target(&json!({"url": "https://h"}));
        assert_eq!((url.as_str(), place), ("https://h/", Ok(host("h", 443))));
        let (url, place) = target(
            &json!({"service": {"name": "n", "namespace": "s", "path": "/p", "port": 8443}}),
        );
        assert_eq!(url, "https://n.s.svc:8443/p");
        let service = Place::Service {
            namespace: "s".into(),
            name: "n".into(),
            port: 8443,
        };
        assert_eq!(place, Ok(service));
    }
}
