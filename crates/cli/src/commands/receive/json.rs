//! A stream command as a JSON object: `command`, its position (`stream`, and the `offset` of its
//! header in the input), and its attributes under the names of the format's documentation.
//!
//! Names that are not UTF-8 also appear as `…_b64`, as do values of extended attributes, salts and
//! signatures. File data appears only as its length, `data_length`. Times are `{"sec": …, "nsec":
//! …}`.

use std::convert::Infallible;

use buttress::stream::command::{AttributeSink, Value as Attribute};
use buttress::stream::{AttributeKind, Frame};
use serde_json::{Map, Value, json};

use crate::output::json::insert_name;

/// Returns the array element of a command.
pub(super) fn element(frame: &Frame<'_>) -> Value {
    let mut object = Map::new();
    object.insert("command".to_owned(), frame.command().kind().name().into());
    object.insert("stream".to_owned(), frame.stream().into());
    object.insert("version".to_owned(), frame.version().to_raw().into());
    object.insert("offset".to_owned(), frame.offset().into());
    let Ok(()) = frame.command().visit(&mut Members(&mut object));
    Value::Object(object)
}

struct Members<'a>(&'a mut Map<String, Value>);

impl AttributeSink for Members<'_> {
    type Error = Infallible;

    fn attribute(&mut self, kind: AttributeKind, value: Attribute<'_>) -> Result<(), Infallible> {
        let value = match value {
            Attribute::U8(number) => number.into(),
            Attribute::U32(number) => number.into(),
            Attribute::U64(number) => number.into(),
            Attribute::Uuid(uuid) => uuid.hyphenated().to_string().into(),
            Attribute::Time(time) => json!({ "sec": time.seconds, "nsec": time.nanoseconds }),
            Attribute::Bytes(data) if kind == AttributeKind::Data => {
                self.0.insert("data_length".to_owned(), data.len().into());
                return Ok(());
            }
            Attribute::Bytes(name) => {
                insert_name(self.0, kind.name(), name);
                return Ok(());
            }
        };
        self.0.insert(kind.name().to_owned(), value);
        Ok(())
    }
}
