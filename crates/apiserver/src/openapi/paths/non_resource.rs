//! The paths without a resource: discovery, the server's version, and the documents with which other programs verify its tokens.

use serde_json::{Value, json};

use super::{names, verbs::Content, writer::answers};
use crate::{
    auth::oidc,
    openapi::{
        Dialect, name,
        wire::{self, component_of},
    },
};

const DISCOVERY: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const JSON: &[&str] = &["application/json"];

/// A path without a resource.
pub(in crate::openapi) struct NonResourcePath {
    /// The name of its v3 document.
    pub(in crate::openapi) name: String,
    pub(in crate::openapi) path: String,
    pub(in crate::openapi) item: Value,
}

/// Returns the paths that belong to no group's version.
pub(in crate::openapi) fn all(dialect: Dialect, groups: &[&str]) -> Vec<NonResourcePath> {
    let get = |name: &str, path: String, operation: &Operation<'_>| NonResourcePath {
        name: name.to_owned(),
        path,
        item: operation.item(dialect),
    };
    let discovery = Operation {
        consumes: DISCOVERY,
        produces: DISCOVERY,
        ..Operation::default()
    };
    let openid = |path: &'static str, operation: Operation<'_>| {
        get(path.trim_start_matches('/'), path.to_owned(), &operation)
    };
    let mut all = vec![
        get(
            "api",
            "/api/".to_owned(),
            &Operation {
                id: "getCoreAPIVersions",
                tag: "core",
                description: "get available API versions",
                answer: wire::API_VERSIONS,
                ..discovery
            },
        ),
        get(
            "apis",
            "/apis/".to_owned(),
            &Operation {
                id: "getAPIVersions",
                tag: "apis",
                description: "get available API versions",
                answer: wire::API_GROUP_LIST,
                ..discovery
            },
        ),
        get(
            "version",
            "/version/".to_owned(),
            &Operation {
                id: "getCodeVersion",
                tag: "version",
                description: "get the version of this server",
                answer: wire::INFO,
                consumes: JSON,
                produces: JSON,
            },
        ),
        openid(
            oidc::CONFIGURATION,
            Operation {
                id: "getServiceAccountIssuerOpenIDConfiguration",
                tag: "WellKnown",
                description: "get how to check tokens of service accounts: their issuer and where its keys are",
                produces: JSON,
                ..Operation::default()
            },
        ),
        openid(
            oidc::KEYS,
            Operation {
                id: "getServiceAccountIssuerOpenIDKeyset",
                tag: "openid",
                description: "get the keys that tokens of service accounts are checked with",
                produces: &["application/jwk-set+json"],
                ..Operation::default()
            },
        ),
    ];
    all.extend(groups.iter().map(|group| {
        let tag = names::of_group(group);
        let operation = Operation {
            id: &format!("get{}APIGroup", names::capital(&tag)),
            tag: &tag,
            description: "get information of a group",
            answer: wire::API_GROUP,
            ..discovery
        };
        get(
            &format!("apis/{group}"),
            format!("/apis/{group}/"),
            &operation,
        )
    }));
    all
}

/// Returns the discovery path of a group's version, for its document.
pub(in crate::openapi) fn resources(
    dialect: Dialect,
    group: &str,
    version: &str,
) -> NonResourcePath {
    let of_group = names::capital(&names::of_group(group));
    let of_version = names::capital(&names::identifier(version));
    let operation = Operation {
        id: &format!("get{of_group}{of_version}APIResources"),
        tag: &names::tag(group, version),
        description: "get available resources",
        answer: wire::API_RESOURCE_LIST,
        consumes: DISCOVERY,
        produces: DISCOVERY,
    };
    NonResourcePath {
        name: name(group, version),
        path: format!("{}/", super::base(group, version)),
        item: operation.item(dialect),
    }
}

/// A GET of one document.
#[derive(Clone, Copy, Default)]
struct Operation<'a> {
    id: &'a str,
    tag: &'a str,
    description: &'a str,
    /// The type of the response; empty for text.
    answer: &'a str,
    consumes: &'static [&'static str],
    produces: &'static [&'static str],
}

impl Operation<'_> {
    fn item(&self, dialect: Dialect) -> Value {
        let component = component_of(self.answer);
        let answer = match self.answer {
            "" => Content::Text,
            _ => Content::Of(&component),
        };
        let mut operation = json!({
            "description": self.description,
            "operationId": self.id,
            "tags": [self.tag],
            "responses": answers(dialect, answer, self.produces, &[]),
        });
        if dialect == Dialect::V2 {
            if !self.consumes.is_empty() {
                operation["consumes"] = json!(self.consumes);
            }
            operation["produces"] = json!(self.produces);
            operation["schemes"] = json!(["https"]);
        }
        json!({ "get": operation })
    }
}
