//! Writes the XML of a response.

use std::fmt;

use quick_xml::{
    Writer,
    events::{BytesStart, BytesText, Event},
};

const INFALLIBLE: &str = "writing to memory does not fail";

/// A response that is being written.
pub(crate) struct Xml {
    writer: Writer<Vec<u8>>,
}

impl Xml {
    /// Writes a whole response; its root element gets the namespace, if there is one.
    pub(crate) fn document(
        root: &str,
        namespace: Option<&str>,
        content: impl FnOnce(&mut Self),
    ) -> Vec<u8> {
        let mut xml = Self {
            writer: Writer::new(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_vec()),
        };
        let mut start = BytesStart::new(root);
        if let Some(namespace) = namespace {
            start.push_attribute(("xmlns", namespace));
        }
        xml.within(start, content);
        xml.writer.into_inner()
    }

    /// Writes an element that contains other elements.
    pub(crate) fn node(&mut self, name: &str, content: impl FnOnce(&mut Self)) {
        self.within(BytesStart::new(name), content);
    }

    /// Writes an element that contains a text.
    pub(crate) fn leaf(&mut self, name: &str, value: impl fmt::Display) {
        let text = value.to_string();
        self.within(BytesStart::new(name), |xml| {
            xml.event(Event::Text(BytesText::new(&text)));
        });
    }

    /// Writes an element that contains a text, unless the text is absent.
    pub(crate) fn maybe(&mut self, name: &str, value: Option<impl fmt::Display>) {
        if let Some(value) = value {
            self.leaf(name, value);
        }
    }

    /// Writes a list, each member as an element `item`.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.node(name, |xml| {
            for item in items {
                xml.node("item", |xml| each(xml, item));
            }
        });
    }

    /// Writes a list of texts.
    pub(crate) fn texts(&mut self, name: &str, items: impl IntoIterator<Item: fmt::Display>) {
        self.node(name, |xml| {
            items.into_iter().for_each(|item| xml.leaf("item", item));
        });
    }

    fn within(&mut self, start: BytesStart<'_>, content: impl FnOnce(&mut Self)) {
        let end = start.to_end().into_owned();
        self.event(Event::Start(start));
        content(self);
        self.event(Event::End(end));
    }

    fn event(&mut self, event: Event<'_>) {
        self.writer.write_event(event).expect(INFALLIBLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_lists_have_items() {
        let bytes = Xml::document("A", Some("urn:x"), |xml| {
            xml.leaf("b", "<&>");
            xml.maybe("c", None::<u8>);
            xml.texts("d", [1, 2]);
        });
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<A xmlns=\"urn:x\"><b>&lt;&amp;&gt;</b><d><item>1</item><item>2</item></d></A>"
        );
    }
}
