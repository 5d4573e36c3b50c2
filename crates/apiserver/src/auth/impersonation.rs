//! Lets a user act as another through the `Impersonate-*` headers, each of which needs a permission (upstream: endpoints/filters/
//! impersonation, with constrained impersonation, KEP-5284).
//!
//! Several modes are tried in order; the first that allows everything decides. A constrained mode asks for two permissions: to do the
//! request's verb while acting as somebody (`impersonate-on:<mode>:<verb>`), and to act as this one (`impersonate:<mode>`). The last mode is
//! the old one, `impersonate`. When none allows it, the refusal is that of the first mode that applied. Which mode last let a user act as
//! another is remembered, and that one is tried first.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use http::HeaderMap;
use mullion_kinds::request::{
    AUTHENTICATED, MASTERS, User,
    attributes::{Attributes, Resource, Target},
    service_account,
};
use mullion_kube_text::{
    field::{Errors, Path},
    golang::quote,
    names,
    status::Status,
};

use super::{UNAUTHENTICATED, rbac::Authorizer};
use crate::request::query;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_PREFIX: &str = "system:node:";
const NODES: &str = "system:nodes";
pub(super) const ANONYMOUS: &str = "system:anonymous";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// From so many values on, the permission for all of them is asked for first.
const MANY: usize = 4;
/// The number of users whose last impersonation mode is remembered.
const REMEMBERED: usize = 10_000;

/// Returns the user that the headers name, or `None` if the request has no such headers.
///
/// # Errors
/// 400 if they ask for parts of a user without a name.
pub(super) fn wanted(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let first = |name| {
        let value = headers.get(name);
        value.map_or_else(String::new, |value| {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        })
    };
    let mut user = User {
        name: first(USER),
        uid: first(UID),
        ..User::default()
    };
    let mut has_extra = false;
    for (name, value) in headers {
        let value = || String::from_utf8_lossy(value.as_bytes()).into_owned();
        match name.as_str() {
            GROUP => user.groups.push(value()),
            other => {
                if let Some(key) = other.strip_prefix(EXTRA) {
                    has_extra = true;
                    // Header names cannot hold every character of a key, so clients escape them.
                    let values = user.extra.entry(query::unescape(key)).or_default();
                    values.push(value());
                }
            }
        }
    }
    if !user.name.is_empty() {
        return Ok(Some(user));
    }
    if user.uid.is_empty() && user.groups.is_empty() && !has_extra {
        return Ok(None);
    }
    Err(Status::bad_request(format!(
        "requested {} without impersonating a user name",
        go_user(&user)
    )))
}

/// Returns the user to act as, with the groups that the server adds.
///
/// # Errors
/// 403 if no mode allows it.
pub(super) fn impersonate(
    authorizer: &Authorizer,
    requestor: &User,
    wanted: User,
    request: &Attributes<'_>,
) -> Result<User, Status> {
    let mut first = None;
    let last = authorizer.last_modes.find(&requestor.name);
    let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
    for mode in last
        .into_iter()
        .chain(others)
        .filter(|mode| mode.applies(&wanted, requestor))
    {
        let attempt = Attempt {
            authorizer,
            requestor,
            mode,
        };
        match attempt.check(&wanted, request) {
            Ok(user) => {
                if Some(mode) != last {
                    authorizer.last_modes.remember(&requestor.name, mode);
                }
                return Ok(user);
            }
            Err(refusal) => {
                // As in kube-apiserver, the refusal of the first mode that applied is the one that is returned.
                first.get_or_insert(refusal);
            }
        }
    }
    Err(first.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
}

/// The mode in which users last acted as others, for as many users as upstream remembers: those of late.
#[derive(Default)]
pub(super) struct LastModes(Mutex<ModeCache>);

#[derive(Default)]
struct ModeCache {
    modes: HashMap<String, (Mode, u64)>,
    /// Counts the uses.
    uses: u64,
}

impl LastModes {
    fn find(&self, requestor: &str) -> Option<Mode> {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.uses += 1;
        let now = remembered.uses;
        let (mode, used) = remembered.modes.get_mut(requestor)?;
        *used = now;
        Some(*mode)
    }

    fn remember(&self, requestor: &str, mode: Mode) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.uses += 1;
        let now = remembered.uses;
        let ModeCache { modes, .. } = &mut *remembered;
        // Bounded, because user names come from outside.
        if modes.len() >= REMEMBERED && !modes.contains_key(requestor) {
            let oldest = modes.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                modes.remove(&oldest);
            }
        }
        modes.insert(requestor.to_owned(), (mode, now));
    }
}

/// The ways in which a user can impersonate another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// A service account as the node that its pod runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

impl Mode {
    const ALL: [Mode; 5] = [
        Mode::AssociatedNode,
        Mode::ArbitraryNode,
        Mode::ServiceAccount,
        Mode::UserInfo,
        Mode::Legacy,
    ];

    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "",
        }
    }

    fn verb(self) -> String {
        match self {
            Mode::Legacy => "impersonate".to_owned(),
            mode => format!("impersonate:{}", mode.name()),
        }
    }

    fn applies(self, wanted: &User, requestor: &User) -> bool {
        let only_name =
            wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = node_name(&wanted.name);
        let account = service_account::split_username(&wanted.name);
        match self {
            Mode::AssociatedNode => {
                let home = requestor.extra.get(NODE_NAME).map(Vec::as_slice);
                let is_home = matches!((home, node), (Some([home]), Some(node)) if home == node);
                only_name && is_home && service_account::split_username(&requestor.name).is_some()
            }
            Mode::ArbitraryNode => only_name && node.is_some(),
            Mode::ServiceAccount => only_name && account.is_some(),
            Mode::UserInfo => node.is_none() && account.is_none(),
            Mode::Legacy => true,
        }
    }
}

struct Attempt<'a> {
    authorizer: &'a Authorizer,
    requestor: &'a User,
    mode: Mode,
}

impl Attempt<'_> {
    fn check(&self, wanted: &User, request: &Attributes<'_>) -> Result<User, Status> {
        if self.is_constrained() {
            let verb = format!("impersonate-on:{}:{}", self.mode.name(), request.verb);
            let attributes = Attributes {
                verb: verb.into(),
                target: request.target.clone(),
            };
            self.authorizer.require(self.requestor, &attributes)?;
        }
        let mut user = wanted.clone();
        self.check_name(wanted, &mut user)?;
        if !wanted.uid.is_empty() {
            self.ask(Resource {
                group: AUTHENTICATION,
                resource: "uids",
                name: wanted.uid.as_str().into(),
                ..Resource::default()
            })?;
        }
        self.check_groups(&wanted.groups)?;
        self.check_extra(&wanted.extra)?;
        let has = |group: &str| user.groups.iter().any(|other| other == group);
        let implied = if user.name == ANONYMOUS {
            UNAUTHENTICATED
        } else {
            AUTHENTICATED
        };
        // kube-apiserver adds the group that every authenticated user has, unless the client asked to act as an unauthenticated one.
        if !has(implied) && !has(UNAUTHENTICATED) {
            user.groups.push(implied.to_owned());
        }
        Ok(user)
    }

    fn is_constrained(&self) -> bool {
        self.mode != Mode::Legacy
    }

    /// Returns the API group of the resources that stand for names and groups.
    fn group(&self) -> &'static str {
        if self.is_constrained() {
            AUTHENTICATION
        } else {
            ""
        }
    }

    fn check_name(&self, wanted: &User, user: &mut User) -> Result<(), Status> {
        let mut target = Resource {
            group: self.group(),
            resource: "users",
            name: wanted.name.as_str().into(),
            ..Resource::default()
        };
        if self.is_constrained()
            && let Some(node) = node_name(&wanted.name)
        {
            target.resource = "nodes";
            // The permission is for whichever node the requestor is on.
            let name = match self.mode {
                Mode::AssociatedNode => "*",
                _ => node,
            };
            target.name = name.into();
            user.groups = vec![NODES.to_owned()];
        }
        if let Some((namespace, name)) = service_account::split_username(&wanted.name) {
            target.resource = "serviceaccounts";
            target.namespace = namespace;
            target.name = name.into();
            if wanted.groups.is_empty() {
                user.groups = service_account::groups(namespace);
            }
        }
        self.ask(target)
    }

    fn check_groups(&self, groups: &[String]) -> Result<(), Status> {
        let target = |name: &str| Resource {
            group: self.group(),
            resource: "groups",
            name: name.to_owned().into(),
            ..Resource::default()
        };
        if self.is_constrained() {
            if groups.iter().any(String::is_empty) {
                let why = "impersonating the empty string group is not allowed";
                return Err(self.refuse(target(""), why));
            }
            // No rule could limit a member of this group, so a constrained permission must not lead there.
            if groups.iter().any(|group| group == MASTERS) {
                let why = "impersonating the system:masters group is not allowed";
                return Err(self.refuse(target(MASTERS), why));
            }
            // One question instead of one for each group; a refusal here only means that they are asked one by one.
            if groups.len() >= MANY && self.ask(target("*")).is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.ask(target(group)))
    }

    fn check_extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        if extra.is_empty() {
            return Ok(());
        }
        let target = |key, value: &str| Resource {
            group: AUTHENTICATION,
            resource: "userextras",
            subresource: key,
            name: value.to_owned().into(),
            ..Resource::default()
        };
        if self.is_constrained() {
            if let Some(why) = unfit_extra(extra) {
                return Err(self.refuse(target("", ""), &why));
            }
            let values: usize = extra.values().map(Vec::len).sum();
            if (extra.len() >= MANY || values >= MANY) && self.ask(target("*", "*")).is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.ask(target(key, value))?;
            }
        }
        Ok(())
    }

    fn attributes<'r>(&self, target: Resource<'r>) -> Attributes<'r> {
        Attributes {
            verb: self.mode.verb().into(),
            target: Target::Resource(target),
        }
    }

    fn ask(&self, target: Resource<'_>) -> Result<(), Status> {
        self.authorizer
            .require(self.requestor, &self.attributes(target))
    }

    fn refuse(&self, target: Resource<'_>, why: &str) -> Status {
        self.attributes(target).forbidden(&self.requestor.name, why)
    }
}

/// Returns the name of the node that a user name stands for.
fn node_name(user: &str) -> Option<&str> {
    let name = user.strip_prefix(NODE_PREFIX)?;
    names::dns_subdomain(name).is_empty().then_some(name)
}

/// Returns the error for extra fields that a constrained mode does not allow, or `None` if it allows them.
fn unfit_extra(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        if key.is_empty() {
            return Some("impersonating the empty string key in extra is not allowed".to_owned());
        }
        if let Some(why) = unfit_key(key) {
            let why = format!("impersonating an invalid key in extra is not allowed: {why}");
            return Some(why);
        }
        if *key != key.to_lowercase() {
            let key = quote(key);
            let why = format!("impersonating a non-lowercase key in extra is not allowed: {key}");
            return Some(why);
        }
        let why = "impersonating the empty string value in extra is not allowed";
        values.iter().any(String::is_empty).then(|| why.to_owned())
    })
}

/// Returns the error for a key that is not a path with a domain in front, such as `example.com/key`.
fn unfit_key(key: &str) -> Option<String> {
    let mut errors = Errors::default();
    let path = Path::new("extra");
    let path = path.child("key");
    match key.split_once('/') {
        Some((host, rest)) if !host.is_empty() && !rest.is_empty() => {
            mullion_kube_text::validation::check(
                &mut errors,
                &path,
                host,
                names::dns_subdomain(host),
            );
            mullion_kube_text::validation::check(&mut errors, &path, rest, names::http_path(rest));
        }
        _ => {
            let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.invalid(&path, key, why);
        }
    }
    let texts: Vec<String> = errors
        .0
        .iter()
        .map(|error| format!("{}: {}", error.field, error.body()))
        .collect();
    match texts.len() {
        0 => None,
        1 => Some(texts.concat()),
        _ => Some(format!("[{}]", texts.join(", "))),
    }
}

/// Formats a user as Go's `%#v` does.
fn go_user(user: &User) -> String {
    let list = |texts: &[String]| {
        let quoted: Vec<String> = texts.iter().map(|text| quote(text)).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if user.groups.is_empty() {
        "[]string(nil)".to_owned()
    } else {
        list(&user.groups)
    };
    let extra = if user.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let entries = user.extra.iter();
        let entries: Vec<String> = entries
            .map(|(key, values)| format!("{}:{}", quote(key), list(values)))
            .collect();
        format!("map[string][]string{{{}}}", entries.join(", "))
    };
    format!(
        "&user.DefaultInfo{{Name:{}, UID:{}, Groups:{groups}, Extra:{extra}}}",
        quote(&user.name),
        quote(&user.uid)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                let name = http::HeaderName::from_static(name);
                (name, http::HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn a_user_is_put_together_from_the_headers() {
        let headers = headers(&[
            ("impersonate-user", "jane"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-acme.com%2fscope", "view"),
        ]);
        let user = wanted(&headers).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.extra["acme.com/scope"], ["view"]);
        assert_eq!(wanted(&HeaderMap::new()), Ok(None));
        let mut two = HeaderMap::new();
        two.append(USER, http::HeaderValue::from_static(""));
        two.append(USER, http::HeaderValue::from_static("jane"));
        assert_eq!(wanted(&two), Ok(None), "the first one counts");
    }

    #[test]
    fn the_modes_of_as_many_users_are_remembered_as_upstream_remembers() {
        let modes = LastModes::default();
        for user in 0..REMEMBERED {
            modes.remember(&user.to_string(), Mode::Legacy);
        }
        assert_eq!(modes.find("0"), Some(Mode::Legacy));
        modes.remember("jane", Mode::UserInfo);
        assert_eq!(modes.find("jane"), Some(Mode::UserInfo));
        assert_eq!(
            (modes.find("0"), modes.find("1")),
            (Some(Mode::Legacy), None)
        );
    }

    #[test]
    fn parts_of_a_user_without_a_name_are_refused() {
        let refusal = wanted(&headers(&[("impersonate-group", "g")])).unwrap_err();
        let text = r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name"#;
        assert_eq!((refusal.code, refusal.message.as_str()), (400, text));
    }

    #[test]
    fn keys_of_extra_fields_are_paths_with_a_domain() {
        assert_eq!(unfit_key("acme.com/scope"), None);
        let why = unfit_key("scope").unwrap();
        assert_eq!(
            why,
            r#"extra.key: Invalid value: "scope": must be a domain-prefixed path (such as "acme.io/foo")"#
        );
    }
}
