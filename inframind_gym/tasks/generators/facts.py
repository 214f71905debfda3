"""Everyday knowledge as tables, from which the commonsense families are made.

Figures are typical values, rounded; questions only compare things that differ by a clear factor.
"""

from __future__ import annotations

# Longest side of a typical one, in metres.
SIZES = {
    "a grain of sand": 0.0005,
    "a flea": 0.002,
    "a ladybug": 0.007,
    "a coffee bean": 0.012,
    "a thimble": 0.025,
    "a walnut": 0.04,
    "a tennis ball": 0.067,
    "a banana": 0.19,
    "a shoe": 0.3,
    "a baseball bat": 1.0,
    "a door": 2.0,
    "a car": 4.5,
    "a city bus": 12.0,
    "a blue whale": 26.0,
    "a passenger jet": 60.0,
    "a football stadium": 250.0,
    "a cruise ship": 330.0,
    "a skyscraper of 150 floors": 700.0,
    "Mount Everest": 8800.0,
    "the Moon": 3.5e6,
    "the Earth": 1.3e7,
    "Jupiter": 1.4e8,
    "the Sun": 1.4e9,
}

# Mass of a typical one, in kilograms.
WEIGHTS = {
    "a snowflake": 0.000003,
    "a feather": 0.0001,
    "a paper clip": 0.001,
    "a sheet of paper": 0.005,
    "an egg": 0.06,
    "an apple": 0.18,
    "a loaf of bread": 0.6,
    "a brick": 2.5,
    "a house cat": 4.5,
    "a car tire": 10.0,
    "a full suitcase": 23.0,
    "a washing machine": 70.0,
    "an upright piano": 230.0,
    "a horse": 500.0,
    "a family car": 1500.0,
    "an adult elephant": 5000.0,
    "a loaded truck": 38000.0,
    "a blue whale": 130000.0,
    "a passenger jet": 350000.0,
    "a container ship": 1.5e8,
}

# Usual or top speed, in metres per second.
SPEEDS = {
    "hair growing": 5e-9,
    "a glacier": 1e-5,
    "a garden snail": 0.002,
    "a tortoise walking": 0.1,
    "a person strolling": 1.3,
    "a city cyclist": 5.0,
    "a sprinter in a 100 m race": 10.0,
    "a galloping racehorse": 18.0,
    "a running cheetah": 28.0,
    "a diving peregrine falcon": 85.0,
    "a passenger jet in flight": 250.0,
    "sound in air": 340.0,
    "a rifle bullet": 900.0,
    "a satellite in low orbit": 7800.0,
    "the Earth on its way around the Sun": 30000.0,
    "light": 3e8,
}

# Usual duration, in seconds.
DURATIONS = {
    "a blink of an eye": 0.2,
    "a sneeze": 1.0,
    "tying a shoelace": 12.0,
    "brushing one's teeth": 130.0,
    "boiling an egg": 500.0,
    "baking a loaf of bread": 2400.0,
    "watching a feature film": 7000.0,
    "a night's sleep": 28000.0,
    "a weekend": 1.7e5,
    "a school summer holiday": 4e6,
    "a human pregnancy": 2.4e7,
    "a term as a head of state": 1.4e8,
    "a childhood up to the age of 18": 5.7e8,
    "a human lifetime": 2.4e9,
    "the age of the pyramids of Giza": 1.4e11,
    "the time since the last dinosaurs": 2e15,
}

# Temperature in degrees Celsius.
TEMPERATURES: dict[str, float] = {
    "liquid nitrogen": -196,
    "dry ice": -78,
    "the inside of a home freezer": -18,
    "the inside of a refrigerator": 4,
    "a cool cellar": 12,
    "a heated living room": 21,
    "the inside of a healthy human body": 37,
    "a hot sauna": 85,
    "boiling water at sea level": 100,
    "a pizza oven at work": 350,
    "fresh lava": 1100,
    "the filament of a glowing light bulb": 2500,
    "the surface of the Sun": 5500,
}

CATEGORIES = {
    "bird": ("robin", "penguin", "ostrich", "owl", "eagle", "sparrow", "flamingo", "parrot"),
    "fish": ("trout", "salmon", "tuna", "cod", "herring", "carp", "pike", "anchovy"),
    "insect": ("ant", "beetle", "dragonfly", "moth", "cricket", "wasp", "termite", "grasshopper"),
    "mammal": ("dolphin", "bat", "otter", "camel", "hedgehog", "whale", "kangaroo", "badger"),
    "reptile": ("crocodile", "gecko", "cobra", "tortoise", "iguana", "chameleon", "python"),
    "fruit": ("mango", "plum", "pear", "papaya", "apricot", "lemon", "cherry", "banana"),
    "root vegetable": ("carrot", "beetroot", "turnip", "parsnip", "radish"),
    "tree": ("oak", "birch", "maple", "willow", "spruce", "poplar", "beech"),
    "string instrument": ("violin", "cello", "guitar", "harp", "banjo", "mandolin", "ukulele"),
    "wind instrument": ("flute", "clarinet", "trumpet", "oboe", "trombone", "bassoon"),
    "metal": ("copper", "iron", "zinc", "silver", "aluminium", "nickel", "lead"),
    "gas at room temperature": ("oxygen", "helium", "nitrogen", "methane", "argon", "neon"),
    "gemstone": ("ruby", "emerald", "sapphire", "topaz", "amethyst", "garnet"),
    "kitchen tool": ("whisk", "ladle", "spatula", "colander", "rolling pin", "corkscrew"),
    "carpenter's tool": ("chisel", "saw", "hammer", "clamp", "screwdriver", "mallet"),
    "piece of furniture": ("wardrobe", "bookshelf", "armchair", "stool", "desk", "sofa"),
    "garment": ("scarf", "jacket", "trousers", "sweater", "skirt", "mitten"),
    "watercraft": ("canoe", "ferry", "kayak", "sailboat", "raft", "barge"),
    "planet": ("Venus", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    "continent": ("Africa", "Asia", "Europe", "South America", "Antarctica", "North America"),
    "shape with straight sides": ("triangle", "pentagon", "hexagon", "rhombus", "trapezoid"),
    "chess piece": ("bishop", "knight", "pawn", "queen", "king"),
    "dance": ("waltz", "tango", "samba", "polka", "foxtrot", "rumba"),
    "profession": ("plumber", "architect", "nurse", "baker", "judge", "electrician"),
    "emotion": ("joy", "anger", "fear", "sadness", "envy", "pride"),
    "weather phenomenon": ("hail", "fog", "blizzard", "thunderstorm", "drizzle", "sleet"),
    "currency": ("euro", "yen", "dollar", "peso", "rupee", "franc"),
    "organ of the body": ("liver", "kidney", "heart", "lung", "stomach", "brain"),
}

# Ordered everyday routines; each step presupposes the one before.
SCRIPTS = {
    "baking bread": (
        *("mixing flour, water and yeast", "kneading the dough", "letting the dough rise"),
        *("putting the dough into the oven", "taking the hot loaf out", "slicing the loaf"),
    ),
    "washing clothes by machine": (
        *("sorting the clothes by colour", "loading the machine", "starting the programme"),
        *("taking out the wet clothes", "hanging the clothes up to dry", "folding the dry clothes"),
    ),
    "sending a letter": (
        *("writing the letter", "folding the sheet", "putting the sheet into the envelope"),
        *("sealing the envelope", "dropping the envelope into the mailbox"),
        *("the mail carrier delivering the envelope", "the friend opening the envelope"),
    ),
    "growing tomatoes": (
        *("sowing the seeds", "the seedlings coming up", "planting the seedlings outdoors"),
        *("the plants flowering", "green fruit appearing", "picking the red fruit"),
    ),
    "flying to another city": (
        *("booking the ticket", "packing the suitcase", "checking in at the airport"),
        *("passing the security control", "boarding the aircraft", "fastening the seat belt"),
        *("taking off", "landing", "collecting the suitcase"),
    ),
    "eating at a restaurant": (
        *("being shown to a table", "reading the menu", "ordering", "being served the food"),
        *("eating", "asking for the bill", "paying the bill", "leaving the restaurant"),
    ),
    "changing a flat tire": (
        *("stopping at the roadside", "loosening the wheel nuts", "raising the car with a jack"),
        *("taking off the flat tire", "putting on the spare", "lowering the car", "driving on"),
    ),
    "making a cup of tea": (
        *("filling the kettle", "heating the water", "pouring hot water over the tea bag"),
        *("letting the tea steep", "taking the tea bag out", "drinking the tea"),
    ),
    "painting a room": (
        *("moving the furniture out", "covering the floor", "opening the paint can"),
        *("applying the first coat", "letting the first coat dry", "applying the second coat"),
        *("moving the furniture back in",),
    ),
    "publishing a novel": (
        *("having an idea for a story", "writing a first draft", "revising the draft"),
        *("a publisher accepting it", "printing the copies", "readers buying the book"),
    ),
    "building a house": (
        *("drawing the plans", "getting the building permit", "digging the foundation pit"),
        *("raising the walls", "putting on the roof", "painting the rooms", "moving in"),
    ),
    "borrowing a library book": (
        *("getting a library card", "finding the book on the shelf", "checking the book out"),
        *("taking the book home", "reading it to the end", "returning the book"),
    ),
    "taking a photo on film": (
        *("loading the film", "aiming the camera", "pressing the shutter"),
        *("rewinding the full film", "developing the film", "making prints", "framing a print"),
    ),
    "holding an election": (
        *("the candidates being nominated", "the campaign", "the polling stations opening"),
        *("the voters casting their ballots", "the votes being counted"),
        *("the result being announced", "the winner taking office"),
    ),
    "making a wool sweater": (
        *("shearing the sheep", "washing the fleece", "spinning the yarn", "dyeing the yarn"),
        *("knitting the pieces", "sewing the pieces together", "wearing the sweater"),
    ),
    "the day of a school child": (
        *("waking up", "getting dressed", "walking to school", "the first lesson"),
        *("the lunch break at school", "coming home in the afternoon", "having dinner"),
        *("going to bed",),
    ),
    "the life of a butterfly": (
        *("an egg being laid on a leaf", "a caterpillar hatching", "the caterpillar growing fat"),
        *("the caterpillar turning into a pupa", "the butterfly leaving the pupa"),
    ),
    "the water cycle over the sea": (
        *("sunlight warming the sea", "water evaporating", "the vapour rising and cooling"),
        *("clouds forming", "rain falling on the hills", "a river carrying the water back"),
    ),
    "putting out a house fire": (
        *("a neighbour smelling smoke", "somebody calling the fire brigade"),
        *("the fire engine arriving", "the hoses being rolled out", "the flames being put out"),
        *("the damage being examined",),
    ),
    "learning to drive": (
        *("signing up at a driving school", "taking the first driving lesson"),
        *("passing the driving test", "receiving the licence", "driving to work alone"),
    ),
}  # fmt: skip

# What happens, and what follows from it.
EFFECTS = {
    "a glass bottle full of water is left in a freezer overnight": "the bottle cracks",
    "an ice cube is left on a plate in a warm kitchen": "it turns into a puddle of water",
    "a houseplant gets no water for two months": "it wilts and dries up",
    "a helium balloon is let go outdoors": "it rises into the sky",
    "a metal spoon is left in a pot of boiling soup": "its handle becomes hot",
    "bread is left in a damp bag for two weeks": "mould grows on it",
    "an iron nail lies outside in the rain for a year": "it rusts",
    "a magnet is held close to a heap of iron filings": "the filings stick to it",
    "a lit candle is covered with an upturned jar": "the flame goes out after a while",
    "sugar is stirred into hot tea": "it dissolves and the tea tastes sweet",
    "a ball is thrown straight up on a calm day": "it comes back down",
    "the plug of a full bathtub is pulled": "the water drains away",
    "a wet shirt hangs in the sun on a windy day": "it dries",
    "a sealed bag of chips is taken up a high mountain": "the bag swells",
    "a driver brakes hard on an icy road": "the car slides on",
    "somebody stays in the midday sun for hours without sunscreen": "their skin burns",
    "an alarm clock loses its battery during the night": "it does not ring in the morning",
    "a white shirt is washed hot together with new red socks": "the shirt turns pink",
    "milk stands on a warm shelf for a week": "it turns sour",
    "a stone is dropped into a still pond": "ripples spread over the water",
    "the power fails in a house at night": "the lamps go dark",
    "a bicycle tire runs over a row of thorns": "the tire loses its air",
    "a raw egg falls onto a stone floor": "its shell breaks",
    "a kettle whistles on the stove": "steam is escaping from it",
    "somebody chops a raw onion": "their eyes begin to water",
    "a phone is used all day without being charged": "its battery runs down",
    "snow on a roof meets a week of warm rain": "the snow melts away",
    "a paper boat floats on a stream for an hour": "the paper soaks through",
    "a bridge is closed for repairs": "the traffic takes another route",
    "a baker doubles the salt in the dough by mistake": "the bread tastes too salty",
    "a mirror is taken into a completely dark room": "nothing can be seen in it",
    "a cork is pushed under water and let go": "it comes up to the surface",
}

# What one wants to do, and the thing to do it with.
TOOLS = {
    "cut a wooden board in two": "a saw",
    "drive a nail into a wall": "a hammer",
    "tighten a screw": "a screwdriver",
    "see the craters of the Moon": "a telescope",
    "look at bacteria": "a microscope",
    "measure the temperature of a bath": "a thermometer",
    "find out which way is north": "a compass",
    "dig a hole in the garden": "a spade",
    "drain cooked pasta": "a colander",
    "carry water up a ladder": "a bucket",
    "keep soup hot on a hike": "a vacuum flask",
    "weigh flour for a cake": "a kitchen scale",
    "sew a button onto a shirt": "a needle and thread",
    "reach a high shelf": "a stepladder",
    "open a bottle of wine": "a corkscrew",
    "smooth the creases of a shirt": "an iron",
    "put air into a bicycle tire": "a pump",
    "mend a torn page": "clear tape",
    "measure the length of a room": "a tape measure",
    "see who is at the door at night": "a porch light",
    "stay dry in the rain": "an umbrella",
    "breathe under water": "a scuba tank",
    "beat egg whites stiff": "a whisk",
    "cut paper along a line": "a pair of scissors",
    "listen to a patient's heart": "a stethoscope",
    "measure air pressure": "a barometer",
    "bend a piece of thick wire": "a pair of pliers",
    "check that a shelf is horizontal": "a spirit level",
}

# Where something is usually found.
PLACES = {
    "a scalpel": "an operating theatre",
    "an anchor": "a ship",
    "a runway": "an airport",
    "a pulpit": "a church",
    "a blackboard": "a classroom",
    "a saddle": "a stable",
    "a row of shopping carts": "a supermarket",
    "a diving board": "a swimming pool",
    "a popcorn counter": "a cinema",
    "a printing press": "a newspaper plant",
    "a cockpit": "an aircraft",
    "a treadmill": "a gym",
    "a witness stand": "a courtroom",
    "a kiln": "a pottery",
    "a beehive": "an apiary",
    "a greenhouse": "a plant nursery",
    "a stalactite": "a cave",
    "an oasis": "a desert",
    "a coral reef": "a tropical sea",
    "a glacier": "a high mountain range",
    "a vault with gold bars": "a bank",
    "a dinosaur skeleton on display": "a natural history museum",
    "a telescope under a dome": "an observatory",
    "a milking machine": "a dairy farm",
    "an orchestra pit": "an opera house",
    "a sleeping berth on rails": "a night train",
}

# Does it float on water, conduct electricity well, stick to a magnet, burn, let one see through.
MATERIALS = {
    "a dry pine board": (True, False, False, True, False),
    "an iron bolt": (False, True, True, False, False),
    "a copper coin": (False, True, False, False, False),
    "a window pane": (False, False, False, False, True),
    "a wax candle": (True, False, False, True, False),
    "a steel paper clip": (False, True, True, False, False),
    "a bottle cork": (True, False, False, True, False),
    "a granite pebble": (False, False, False, False, False),
    "a closed, empty bottle of clear plastic": (True, False, False, True, True),
    "a gold ring": (False, True, False, False, False),
    "a clear ice cube": (True, False, False, False, True),
    "a fired clay brick": (False, False, False, False, False),
    "a block of solid aluminium": (False, True, False, False, False),
    "a glass marble": (False, False, False, False, True),
    "a steel nail": (False, True, True, False, False),
    "a porcelain plate": (False, False, False, False, False),
    "a dry oak leaf": (True, False, False, True, False),
    "a silver medal": (False, True, False, False, False),
}

ASPECTS = (
    ("floats on water", "sinks in water"),
    ("conducts electricity well", "does not conduct electricity well"),
    ("sticks to a magnet", "does not stick to a magnet"),
    ("can burn in a campfire", "does not burn in a campfire"),
    ("can be seen through", "cannot be seen through"),
)

# a is to b as c is to d: pairs of one relation.
RELATIONS = {
    "opposite": (
        *(("hot", "cold"), ("high", "low"), ("early", "late"), ("full", "empty")),
        *(("brave", "cowardly"), ("rough", "smooth"), ("ancient", "modern"), ("deep", "shallow")),
    ),
    "young": (
        *(("dog", "puppy"), ("cat", "kitten"), ("cow", "calf"), ("horse", "foal")),
        *(("sheep", "lamb"), ("goose", "gosling"), ("swan", "cygnet"), ("pig", "piglet")),
    ),
    "place of work": (
        *(("teacher", "school"), ("surgeon", "hospital"), ("judge", "courtroom")),
        *(("pilot", "cockpit"), ("chef", "kitchen"), ("farmer", "field"), ("actor", "stage")),
    ),
    "part": (
        *(("page", "book"), ("wheel", "bicycle"), ("petal", "flower"), ("key", "piano")),
        *(("branch", "tree"), ("sail", "yacht"), ("brick", "wall"), ("feather", "wing")),
    ),
    "made of": (
        *(("window", "glass"), ("tire", "rubber"), ("candle", "wax"), ("sweater", "wool")),
        *(("newspaper", "paper"), ("horseshoe", "iron"), ("pot", "clay"), ("shoe", "leather")),
    ),
    "action": (
        *(("knife", "cut"), ("pen", "write"), ("broom", "sweep"), ("oven", "bake")),
        *(("shovel", "dig"), ("needle", "sew"), ("ladder", "climb"), ("telescope", "observe")),
    ),
    "sense organ": (
        *(("eye", "see"), ("ear", "hear"), ("nose", "smell"), ("tongue", "taste")),
    ),
    "group": (
        *(("wolf", "pack"), ("sheep", "flock"), ("fish", "school"), ("bee", "swarm")),
        *(("lion", "pride"), ("ship", "fleet"), ("cow", "herd"), ("singer", "choir")),
    ),
}  # fmt: skip

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of a year that is no leap year
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
