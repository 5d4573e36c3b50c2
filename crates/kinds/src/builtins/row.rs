//! A builder for rows: it starts with the properties that most kinds share, and each method changes one of them.

use std::sync::Arc;

use mullion_schema::Type;

use crate::{Kind, Plain, Resource, Rules, StatusMetadata, Subresource, SubresourceHandler};

pub(super) const STREAM_VERBS: &[&str] = &["create", "get"];
pub(super) const PROXY_VERBS: &[&str] = &["create", "delete", "get", "patch", "update"];
pub(super) const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// A row under construction; [`Row::done`] makes it a [`Resource`].
pub(super) struct Row(Resource);

impl Row {
    /// Creates a namespaced resource named like its kind, stored under its own name, with the default rules.
    pub(super) fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        schema: &str,
    ) -> Row {
        let storage = if group.is_empty() {
            plural.to_owned()
        } else {
            format!("{plural}.{group}")
        };
        Row(Resource {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            plural: plural.into(),
            singular: kind.to_ascii_lowercase().into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            storage: storage.into(),
            schema: Type::builtin(schema).expect("the schema table has every built-in kind"),
            rules: Rules::default(),
            subresources: Vec::new(),
            list_kind: None,
            deprecated: None,
            behaviour: Arc::new(Plain),
        })
    }

    pub(super) fn core(kind: &'static str, plural: &'static str) -> Row {
        Row::new("", "v1", kind, plural, &format!("api.core.v1.{kind}"))
    }

    pub(super) fn apps(kind: &'static str, plural: &'static str) -> Row {
        Row::new("apps", "v1", kind, plural, &format!("api.apps.v1.{kind}"))
    }

    pub(super) fn storage_group(kind: &'static str, plural: &'static str) -> Row {
        Row::new(
            "storage.k8s.io",
            "v1",
            kind,
            plural,
            &format!("api.storage.v1.{kind}"),
        )
    }

    pub(super) fn cluster(mut self) -> Row {
        self.0.namespaced = false;
        self
    }

    pub(super) fn short(mut self, names: &[&'static str]) -> Row {
        self.0.short_names = names.iter().map(|&name| name.into()).collect();
        self
    }

    pub(super) fn in_all(mut self) -> Row {
        self.0.categories = vec!["all".into()];
        self
    }

    pub(super) fn in_api_extensions(mut self) -> Row {
        self.0.categories = vec!["api-extensions".into()];
        self
    }

    pub(super) fn rules(mut self, change: impl FnOnce(&mut Rules)) -> Row {
        change(&mut self.0.rules);
        self
    }

    pub(super) fn stored_as(mut self, storage: &'static str) -> Row {
        self.0.storage = storage.into();
        self
    }

    pub(super) fn deprecated(mut self, warning: &'static str) -> Row {
        self.0.deprecated = Some(warning.into());
        self
    }

    pub(super) fn behaves(mut self, behaviour: impl Kind) -> Row {
        self.0.behaviour = Arc::new(behaviour);
        self
    }

    pub(super) fn subresource(mut self, subresource: Subresource) -> Row {
        self.0.subresources.push(subresource);
        self
    }

    /// Adds `/status`; `metadata` says which metadata a write may change.
    pub(super) fn status(self, metadata: StatusMetadata) -> Row {
        let kind = self.0.kind.clone();
        self.subresource(Subresource {
            name: "status",
            group: None,
            version: None,
            kind,
            verbs: STATUS_VERBS,
            handler: SubresourceHandler::Status(metadata),
        })
    }

    /// Adds `/scale` with `spec.replicas`, `status.replicas` and `spec.selector`.
    pub(super) fn scale(self) -> Row {
        self.subresource(Subresource {
            name: "scale",
            group: Some("autoscaling"),
            version: Some("v1"),
            kind: "Scale".into(),
            verbs: STATUS_VERBS,
            handler: SubresourceHandler::Scale {
                spec_replicas: "spec.replicas".into(),
                status_replicas: "status.replicas".into(),
                selector: Some("spec.selector".into()),
            },
        })
    }

    /// Adds a subresource that writes a part of the object; `metadata` says which metadata a write may change.
    pub(super) fn part(
        self,
        name: &'static str,
        verbs: &'static [&'static str],
        metadata: StatusMetadata,
    ) -> Row {
        let kind = self.0.kind.clone();
        self.subresource(Subresource {
            name,
            group: None,
            version: None,
            kind,
            verbs,
            handler: SubresourceHandler::Part(metadata),
        })
    }

    /// Adds a subresource with a handler of its own.
    pub(super) fn named(
        self,
        name: &'static str,
        kind: &'static str,
        verbs: &'static [&'static str],
    ) -> Row {
        self.subresource(Subresource {
            name,
            group: None,
            version: None,
            kind: kind.into(),
            verbs,
            handler: SubresourceHandler::Named,
        })
    }

    pub(super) fn done(self) -> Resource {
        self.0
    }
}
