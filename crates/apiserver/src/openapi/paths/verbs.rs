//! The verbs of resources, and what each takes and returns. Built-in and custom resources differ in media types and a few parameters.
//!
//! Source: k8s.io/apiserver: pkg/endpoints/installer.go; k8s.io/apiextensions-apiserver: pkg/controller/openapi/builder.

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
];

/// The content of a request or response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// An object of this component.
    Of(&'a str),
    /// Text from a container or a proxied server.
    Text,
}

/// The description of one operation.
pub(super) struct Verb<'a> {
    pub(super) method: &'static str,
    /// The value of `x-kubernetes-action`.
    pub(super) action: &'static str,
    /// The first word of the operationId.
    pub(super) word: &'static str,
    /// The part of the operationId after group and version.
    pub(super) infix: &'static str,
    /// Query parameters besides `pretty`.
    pub(super) parameters: Vec<&'static str>,
    pub(super) body: Option<&'a str>,
    pub(super) answer: Content<'a>,
    /// The response codes besides 200 and 401.
    pub(super) codes: &'static [&'static str],
    pub(super) consumes: &'static [&'static str],
    pub(super) produces: &'static [&'static str],
}

/// The common properties of all verbs of one sort of resources.
pub(super) struct Profile {
    is_custom: bool,
    /// The media types of responses with one object.
    objects: &'static [&'static str],
    /// The media types of lists and watches.
    lists: &'static [&'static str],
    bodies: &'static [&'static str],
    patches: &'static [&'static str],
}

/// The profile of built-in resources. Clients read the patch types: `kubectl apply` sends strategic merge patches only if they are
/// listed.
pub(super) const BUILTIN: Profile = Profile {
    is_custom: false,
    objects: &[
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
    ],
    lists: &[
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;stream=watch",
        "application/vnd.kubernetes.protobuf;stream=watch",
    ],
    bodies: &["*/*"],
    patches: &[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ],
};

/// The profile of custom resources.
pub(super) const CUSTOM: Profile = Profile {
    is_custom: true,
    objects: PLAIN,
    lists: PLAIN,
    bodies: PLAIN,
    patches: &[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ],
};

/// The profile of provided resources without protobuf messages.
pub(super) const PROVIDED: Profile = Profile {
    objects: PLAIN,
    lists: PLAIN,
    ..BUILTIN
};

const PLAIN: &[&str] = &["application/json", "application/yaml"];

impl Profile {
    pub(super) fn list<'a>(&self, list: &'a str) -> Verb<'a> {
        Verb {
            parameters: LIST.to_vec(),
            answer: Content::Of(list),
            produces: self.lists,
            ..self.verb("get", "list", "list")
        }
    }

    pub(super) fn create<'a>(&self, component: &'a str) -> Verb<'a> {
        Verb {
            parameters: WRITE.to_vec(),
            answer: Content::Of(component),
            body: Some(component),
            codes: &["201", "202"],
            ..self.verb("post", "post", "create")
        }
    }

    pub(super) fn read<'a>(&self, component: &'a str) -> Verb<'a> {
        let parameters: &[&str] = if self.is_custom {
            &["resourceVersion"]
        } else {
            &[]
        };
        Verb {
            parameters: parameters.to_vec(),
            answer: Content::Of(component),
            ..self.verb("get", "get", "read")
        }
    }

    /// Returns the verb that reads a container's log.
    pub(super) fn read_log<'a>(&self) -> Verb<'a> {
        Verb {
            parameters: vec![
                "container",
                "follow",
                "insecureSkipTLSVerifyBackend",
                "limitBytes",
                "previous",
                "sinceSeconds",
                "stream",
                "tailLines",
                "timestamps",
            ],
            produces: &[
                "text/plain",
                "application/json",
                "application/yaml",
                "application/vnd.kubernetes.protobuf",
            ],
            ..self.verb("get", "get", "read")
        }
    }

    pub(super) fn replace<'a>(&self, component: &'a str) -> Verb<'a> {
        Verb {
            parameters: WRITE.to_vec(),
            answer: Content::Of(component),
            body: Some(component),
            codes: &["201"],
            ..self.verb("put", "put", "replace")
        }
    }

    pub(super) fn patch<'a>(&self, component: &'a str, patch: &'a str) -> Verb<'a> {
        Verb {
            parameters: PATCH.to_vec(),
            answer: Content::Of(component),
            body: Some(patch),
            codes: if self.is_custom { &[] } else { &["201"] },
            consumes: self.patches,
            ..self.verb("patch", "patch", "patch")
        }
    }

    /// Returns the verb that deletes an object. It returns a Status, for a few kinds the object.
    pub(super) fn delete<'a>(&self, answer: &'a str, options: &'a str) -> Verb<'a> {
        Verb {
            parameters: DELETE.to_vec(),
            answer: Content::Of(answer),
            body: Some(options),
            codes: &["202"],
            ..self.verb("delete", "delete", "delete")
        }
    }

    pub(super) fn delete_all<'a>(&self, status: &'a str, options: &'a str) -> Verb<'a> {
        let mut parameters = LIST.to_vec();
        if !self.is_custom {
            parameters.retain(|name| !matches!(*name, "allowWatchBookmarks" | "watch"));
            parameters.extend(DELETE);
        }
        Verb {
            infix: "Collection",
            parameters,
            answer: Content::Of(status),
            body: (!self.is_custom).then_some(options),
            ..self.verb("delete", "deletecollection", "delete")
        }
    }

    /// Returns the deprecated watch verb: `watchlist` for a collection, `watch` for one object.
    pub(super) fn watch<'a>(&self, action: &'static str, event: &'a str) -> Verb<'a> {
        Verb {
            parameters: LIST.to_vec(),
            answer: Content::Of(event),
            produces: self.lists,
            ..self.verb("get", action, "watch")
        }
    }

    /// Returns the verb for a request that is forwarded to a node or through it.
    pub(super) fn connect<'a>(
        &self,
        (method, name): (&'static str, &'static str),
        parameters: &[&'static str],
    ) -> Verb<'a> {
        Verb {
            infix: name,
            parameters: parameters.to_vec(),
            consumes: &["*/*"],
            produces: &["*/*"],
            ..self.verb(method, "connect", "connect")
        }
    }

    fn verb<'a>(&self, method: &'static str, action: &'static str, word: &'static str) -> Verb<'a> {
        Verb {
            method,
            action,
            word,
            infix: "",
            parameters: Vec::new(),
            body: None,
            answer: Content::Text,
            codes: &[],
            consumes: self.bodies,
            produces: self.objects,
        }
    }
}
