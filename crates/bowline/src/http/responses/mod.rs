//! `/v1/responses`: the OpenAI Responses API for any agent. A response is a turn of a session, read in that API's dialect.

mod create;
pub(crate) mod error;
mod found;
mod input;
mod items;
pub(crate) mod models;
mod request;
pub(crate) mod show;
mod tools;
mod webhook;
mod ws;

use axum::routing::{get, post};

use super::chat::ChatState;
use super::endpoints;

pub use error::{cut_off, in_the_apis_shape};
pub use webhook::announcer;

endpoints! {
    ChatState;
    "/v1/responses" => post(create::create).get(ws::connect),
    "/v1/responses/{id}" => get(show::show).delete(show::delete),
    "/v1/responses/{id}/cancel" => post(show::cancel),
    "/v1/responses/{id}/input_items" => get(show::input_items),
    "/v1/models" => get(models::list),
    "/v1/models/{id}" => get(models::show),
}
