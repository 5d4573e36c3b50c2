//! The names of service accounts as users (apiserver: pkg/authentication/serviceaccount/util.go).

use mullion_kube_text::names;

const PREFIX: &str = "system:serviceaccount:";

/// Returns the name of the user that a service account is.
pub fn username(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{namespace}:{name}")
}

/// Returns the groups that every service account of a namespace is in.
pub fn groups(namespace: &str) -> Vec<String> {
    vec![
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
    ]
}

/// Returns the namespace and name of the service account that a user is, or `None` for other users.
pub fn split_username(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(PREFIX)?.split_once(':')?;
    let good = names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty();
    good.then_some((namespace, name))
}
