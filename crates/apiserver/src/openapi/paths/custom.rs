//! The paths of custom resources. Source: k8s.io/apiextensions-apiserver: pkg/controller/openapi/builder.

use mullion_kinds::SubresourceHandler;
use serde_json::{Map, Value};

use super::{
    verbs::{CUSTOM, Verb},
    writer::{Place, Writer},
};
use crate::{
    openapi::{
        Dialect,
        wire::{DELETE_OPTIONS, PATCH_BODY, SCALE, STATUS, component_of, list_of},
    },
    registry::Row,
};

/// Adds the paths of a custom resource; `component` is the schema of its kind.
pub(super) fn add(paths: &mut Map<String, Value>, dialect: Dialect, row: &Row, component: &str) {
    let resource = &row.resource;
    let base = super::base(&resource.group, &resource.version);
    let place = super::collection(&base, resource);
    let list = list_of(row, component);
    let [status, options, patch, scale] =
        [STATUS, DELETE_OPTIONS, PATCH_BODY, SCALE].map(component_of);
    let writer = Writer { dialect, resource };
    if resource.namespaced {
        let item = writer.item(&Place::everywhere(resource), &[CUSTOM.list(&list)]);
        paths.insert(format!("{base}/{}", resource.plural), item);
    }
    let collection = [
        CUSTOM.list(&list),
        CUSTOM.create(component),
        CUSTOM.delete_all(&status, &options),
    ];
    let item = writer.item(&Place::collection(resource), &collection);
    paths.insert(place.clone(), item);
    let object = Place::object(resource);
    let mut verbs = Vec::from(reads_and_writes(component, &patch));
    verbs.push(CUSTOM.delete(&status, &options));
    paths.insert(format!("{place}/{{name}}"), writer.item(&object, &verbs));
    for subresource in &resource.subresources {
        let shown = match subresource.handler {
            SubresourceHandler::Status(_) => component,
            SubresourceHandler::Scale { .. } => &scale,
            SubresourceHandler::Named | SubresourceHandler::Part(_) => continue,
        };
        let part = object.part(subresource.name);
        let item = writer.item(&part, &reads_and_writes(shown, &patch));
        paths.insert(format!("{place}/{{name}}/{}", subresource.name), item);
    }
}

fn reads_and_writes<'a>(component: &'a str, patch: &'a str) -> [Verb<'a>; 3] {
    [
        CUSTOM.read(component),
        CUSTOM.replace(component),
        CUSTOM.patch(component, patch),
    ]
}
