"""Count users by age. The values are objects with their own serde. Messages that it can't read go to a topic."""

from dataclasses import dataclass

from broker.client import SyncClient
from broker.streams import Job, Json, StreamBuilder

USERS = "examples/users"
AGES = "examples/ages"
WRONG = "examples/users-wrong"


@dataclass(frozen=True)
class User:
    """A user."""

    name: str
    age: int


class UserText:
    """Users as text: ``Ada,36``."""

    def deserialize(self, payload: bytes) -> User:
        """Return a user. Raises ValueError."""
        name, age = payload.decode().split(",")
        return User(name, int(age))

    def serialize(self, value: User) -> bytes:
        """Return a user as text."""
        return f"{value.name},{value.age}".encode()


def job() -> Job:
    """Return the job."""
    builder = StreamBuilder("ages", dead_letters=WRONG)
    users = builder.source(USERS, UserText())
    counts = users.filter(lambda user: user.age >= 18).key_by(lambda user: user.age).count()
    counts.to_stream(lambda age, count, _: {"age": age, "users": count}).sink(AGES, Json())
    return builder.build()


def publish(client: SyncClient) -> None:
    """Publish the sample."""
    client.publish(USERS, ["Ada,36", "Ben,41", "Cleo", "Dan,36", "Eve,9"])
