//! Watches objects as JSON text, so that one watch loop is compiled for all kinds.
//!
//! kube's watcher is generic over the kind: its state machine, its lists and its events are some 60 kB of code for each. Of an object it
//! needs the resourceVersion alone, so the informers let it watch [`Undecoded`] and decode the text themselves.

use std::{borrow::Cow, fmt};

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource,
    core::DynamicResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::Key;

/// The events of a watch, including relists.
pub(super) type Events = BoxStream<'static, watcher::Result<watcher::Event<Box<RawValue>>>>;

/// Watches what `url` lists: whole objects, or their metadata alone.
pub(super) fn watch(
    client: Client,
    url: &str,
    config: watcher::Config,
    metadata_alone: bool,
) -> Events {
    let url = url.to_owned();
    if metadata_alone {
        texts(Api::<Undecoded<true>>::all_with(client, &url), config)
    } else {
        texts(Api::<Undecoded<false>>::all_with(client, &url), config)
    }
}

fn texts<const METADATA_ALONE: bool>(
    api: Api<Undecoded<METADATA_ALONE>>,
    config: watcher::Config,
) -> Events {
    let events = watcher(api, config).default_backoff();
    let text = |event: watcher::Event<Undecoded<METADATA_ALONE>>| match event {
        watcher::Event::Apply(object) => watcher::Event::Apply(object.into_text()),
        watcher::Event::Delete(object) => watcher::Event::Delete(object.into_text()),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(object.into_text()),
        watcher::Event::InitDone => watcher::Event::InitDone,
    };
    events.map(move |event| event.map(text)).boxed()
}

/// Returns the key of an object that is otherwise unreadable, as far as its metadata tells it.
pub(super) fn key(text: &RawValue) -> Key {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Names,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Names {
        namespace: String,
        name: String,
    }
    let Object { metadata } = serde_json::from_str(text.get()).unwrap_or_default();
    Key::new(&metadata.namespace, &metadata.name)
}

/// The JSON text of an object. `METADATA_ALONE` asks the API for nothing but its metadata.
///
/// It can only be read from JSON text, which the objects of a watch are because API servers write an event's type before its object: serde
/// keeps an object that comes before its type as a tree.
#[derive(Clone, Debug)]
struct Undecoded<const METADATA_ALONE: bool> {
    text: Box<RawValue>,
    /// Only the resourceVersion is set.
    metadata: ObjectMeta,
}

impl<const METADATA_ALONE: bool> Undecoded<METADATA_ALONE> {
    fn into_text(self) -> Box<RawValue> {
        self.text
    }
}

impl<'de, const METADATA_ALONE: bool> Deserialize<'de> for Undecoded<METADATA_ALONE> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(input)?;
        let metadata = ObjectMeta {
            resource_version: resource_version(&text),
            ..ObjectMeta::default()
        };
        Ok(Self { text, metadata })
    }
}

/// Returns the resourceVersion of an object. The text after it, which is most of a pod, is not looked at.
fn resource_version(text: &RawValue) -> Option<String> {
    let mut version = None;
    let within = Find {
        path: &["metadata", "resourceVersion"],
        found: &mut version,
    };
    // Whether it was found or not: its error only ends the reading.
    let _ = within.deserialize(&mut serde_json::Deserializer::from_str(text.get()));
    version
}

/// Looks for the string at a path of nested objects, and ends with an error as soon as it is found.
struct Find<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        if self.path.is_empty() {
            *self.found = Some(String::deserialize(input)?)
        } else {
            input.deserialize_map(self)?
        }
        Err(D::Error::custom("found"))
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((first, path)) = self.path.split_first() else {
            return Ok(());
        };
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == *first {
                let found = self.found;
                return map.next_value_seed(Find { path, found });
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// What is asked for is the URL, and nothing else is known of the kind.
impl<const METADATA_ALONE: bool> Resource for Undecoded<METADATA_ALONE> {
    type DynamicType = String;
    type Scope = DynamicResourceScope;

    fn kind(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn group(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn plural(_: &String) -> Cow<'_, str> {
        "".into()
    }

    fn metadata_api() -> bool {
        METADATA_ALONE
    }

    fn url_path(url: &String, _: Option<&str>) -> String {
        url.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_object_itself() {
        let version = |text: &str| {
            let object: Undecoded<false> = serde_json::from_str(text).expect("an object");
            assert_eq!(object.text.get(), text);
            object.metadata.resource_version
        };
        let of_another = r#"{"involvedObject":{"resourceVersion":"1"},"metadata":{"annotations":{"resourceVersion":"2"},"name":"a","resourceVersion":"3","uid":"u"},"spec":{}}"#;
        assert_eq!(version(of_another), Some("3".to_owned()));
        for without in ["{}", r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":1}"#] {
            assert_eq!(version(without), None);
        }
    }
}
